"""A real HTTP server for reports, whose answers a test decides."""

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from evaluator.contract.reports import ReportBatch

WITHIN_S = 20.0


class ReportServer:
    """Takes batches of reports; answers wait for its gate."""

    answer: Callable[[ReportBatch], int]
    """Status for a batch."""

    def __init__(self, port: int = 0) -> None:
        self.answer = lambda _batch: 204
        self.batches: list[ReportBatch] = []
        self.authorization: list[str | None] = []
        self.gate = threading.Event()
        self.gate.set()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                batch = ReportBatch.model_validate_json(body)
                outer.gate.wait(WITHIN_S)
                outer.batches.append(batch)
                outer.authorization.append(self.headers["Authorization"])
                self.send_response(outer.answer(batch))
                self.end_headers()

            def log_message(self, *_args: Any) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_port}/v1/reports"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,))
        self._thread.start()

    def seqs(self) -> list[int]:
        return [report.seq for batch in self.batches for report in batch.reports]

    def close(self) -> None:
        self.gate.set()
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()
