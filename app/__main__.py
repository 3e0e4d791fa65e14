"""`python -m app`: read the settings, set logging, serve until SIGTERM or SIGINT."""

import signal
import socket
import sys
from types import FrameType

import uvicorn
from fastapi import FastAPI
from pydantic import ValidationError

from app.log import configure_logging
from app.main import create_app
from app.settings import Settings

GRACE_SECONDS = 8
"""Most time for open requests to end once the server is asked to stop."""
_USAGE_ERROR = 2


class Server(uvicorn.Server):
    """Ends the event streams before it waits for open connections, else it would wait for them."""

    def __init__(self, config: uvicorn.Config, app: FastAPI) -> None:
        super().__init__(config)
        self._app = app

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop: no new connections, streams end, open requests are answered, parts stop."""
        self._app.state.parts.streams.close()
        await super().shutdown(sockets)


def serve(settings: Settings) -> None:
    """Serve until a signal comes. Launches that are running go on."""
    configure_logging(settings.log_level)
    app = create_app(settings)
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        log_config=None,
        access_log=False,  # app.middleware writes a line for each request
        server_header=False,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    for number in (signal.SIGINT, signal.SIGTERM):
        # uvicorn raises the signal again once it has stopped: that it stopped well is success.
        signal.signal(number, _do_nothing)
    Server(config, app).run()


def _do_nothing(_number: int, _frame: FrameType | None) -> None:
    """Take a signal that uvicorn has acted on already."""


def main() -> int:
    """Serve with the settings of the environment; return the exit code."""
    try:
        settings = Settings()
    except ValidationError as error:
        for item in error.errors(include_url=False, include_input=False):
            place = "_".join(str(part) for part in item["loc"]).upper()
            sys.stderr.write(f"ASSAY_{place}: {item['msg']}\n" if place else f"{item['msg']}\n")
        return _USAGE_ERROR
    serve(settings)
    return 0


if __name__ == "__main__":
    sys.exit(main())
