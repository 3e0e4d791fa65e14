"""`python -m app`: read the settings, set logging, serve until SIGTERM or SIGINT."""

import asyncio
import gc
import logging
import os
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
from app.start import (
    EXIT_SETTINGS,
    StartError,
    check_database_url,
    listen,
    warn_of_missing_roots,
    warn_of_unknown_variables,
)

_log = logging.getLogger(__name__)

GRACE_SECONDS = 8
"""Most time for open requests to end once the server is asked to stop."""


COLLECT_AFTER = 20_000
"""Objects that are made and kept before the young ones are looked through; Python has 700."""


def spare_full_collections() -> None:
    """Let the garbage collector leave alone what was made until now.

    That is modules, models and tables, some 400 000 objects that stay. Looking through them all
    takes 50 ms and more, several times a minute under load, in which nothing is answered.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER, *gc.get_threshold()[1:])


class Server(uvicorn.Server):
    """Runs the app's parts itself, so that an error of their start is an exception of `serve`.

    Ends the event streams before it waits for open connections, else it would wait for them.
    """

    def __init__(self, config: uvicorn.Config, app: FastAPI) -> None:
        super().__init__(config)
        self._app = app
        self._starting: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the parts, serve, stop them; a signal during the start breaks it off."""
        self._loop = asyncio.get_running_loop()
        with self.capture_signals():
            self._starting = asyncio.current_task()
            try:
                async with self._app.router.lifespan_context(self._app):
                    self._starting = None
                    await self._serve_started(sockets)
            except asyncio.CancelledError:
                if not self.should_exit:
                    raise

    async def _serve_started(self, sockets: list[socket.socket] | None) -> None:
        settings: Settings = self._app.state.parts.settings
        warn_of_missing_roots(settings)
        _log.info("serving", extra={"url": settings.base_url})
        spare_full_collections()
        await super().serve(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Take a signal: the event loop acts on it."""
        super().handle_exit(sig, frame)
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._break_off)

    def _break_off(self) -> None:
        if self._starting is not None:
            self._starting.cancel()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop: no new connections, streams end, open requests are answered, parts stop."""
        self._app.state.parts.streams.close()
        await super().shutdown(sockets)


def serve(settings: Settings) -> None:
    """Serve until a signal comes. Launches that are running go on.

    Raises:
        StartError: something refuses.
    """
    warn_of_unknown_variables(os.environ)
    check_database_url(settings)
    with listen(settings) as sockets:
        app = create_app(settings)
        config = uvicorn.Config(
            app,
            lifespan="off",  # Server runs it
            log_config=None,
            access_log=False,  # app.middleware writes a line for each request
            server_header=False,
            timeout_graceful_shutdown=GRACE_SECONDS,
        )
        for number in (signal.SIGINT, signal.SIGTERM):
            # uvicorn raises the signal again once it has stopped: that it stopped well is success.
            signal.signal(number, _do_nothing)
        with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
            runner.run(Server(config, app).serve(sockets))


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
        return EXIT_SETTINGS
    configure_logging(settings.log_level)
    try:
        serve(settings)
    except StartError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
