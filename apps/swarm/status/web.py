"""A look at a swarm over HTTP, read only: a page, a JSON object, and metrics as Prometheus reads them.

Every request is answered from the last look. The server listens on 127.0.0.1 alone, reads no bodies, serves few
requests at once, and counts those that it rejects.
"""

import html
import json
import math
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import StringIO
from ipaddress import ip_address
from threading import BoundedSemaphore, Thread
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

from rich.console import Console

from apps.swarm.status.prometheus import metrics
from apps.swarm.status.table import table
from pipelined.swarm.status.status import SwarmStatus

PAGE = """<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="2"><title>swarm</title>
<style>body{{font:14px/1.4 monospace;margin:2em}}</style><pre>{}</pre>"""

MOST_CALLERS = 16
"""The most connections at once. Each has a thread, even while it is silent."""


KINDS = {"/": "text/html", "/status.json": "application/json", "/metrics": "text/plain"}
"""The pages, with the type of each."""
REMEDIES = {
    HTTPStatus.MISDIRECTED_REQUEST: "the Host header names another machine; open http://127.0.0.1:PORT/, "
    "from elsewhere by way of: ssh -L PORT:127.0.0.1:PORT MACHINE"
}
"""The remedy on the page of an HTTP status."""


class Web:
    """A context in which the page is served.

    Args:
        port: 0 for any free one.

    Attributes:
        address: of the page.
        last: the look that is shown.
        rejected: the number of rejected requests, by reason.
    """

    def __init__(self, port: int):
        self.last: SwarmStatus | None = None
        self.rejected = Counter[str]()
        self._server = _Server(port, _answering(lambda: self.last, self.rejected), self.rejected)
        self.address = f"http://127.0.0.1:{self._server.server_port}/"

    def __enter__(self) -> "Web":
        self._thread = Thread(target=self._server.serve_forever, args=(0.1,), name="web", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    """A server that closes connections beyond MOST_CALLERS."""

    request_queue_size = 4 * MOST_CALLERS

    def __init__(self, port: int, answering: type[BaseHTTPRequestHandler], rejected: Counter[str]):
        super().__init__(("127.0.0.1", port), answering)
        self._room, self._rejected = BoundedSemaphore(MOST_CALLERS), rejected

    def process_request(self, request: Any, caller: Any) -> None:
        if self._room.acquire(blocking=False):
            super().process_request(request, caller)
        else:
            self._rejected["too many callers"] += 1
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, caller: Any) -> None:
        try:
            super().process_request_thread(request, caller)
        finally:
            self._room.release()

    def handle_error(self, request: Any, caller: Any) -> None:
        """Count a connection that the browser closed early; report anything else as an error of this program."""
        if isinstance(sys.exception(), OSError):
            self._rejected["hung up"] += 1
        else:
            super().handle_error(request, caller)


def _answering(last: Callable[[], SwarmStatus | None], rejected: Counter[str]) -> type[BaseHTTPRequestHandler]:
    class StatusPageHandler(BaseHTTPRequestHandler):
        timeout = 5  # seconds after which a silent connection is closed

        def do_GET(self) -> None:
            if not all(map(is_this_machine, self.headers.get_all("Host", []))):
                return self.send_error(HTTPStatus.MISDIRECTED_REQUEST)
            kind, status = KINDS.get(self.path), last()
            if kind is None or status is None:
                return self.send_error(404 if kind is None else 503)
            plain = status.plain() | {"web_rejected": dict(rejected)}
            render = metrics if self.path == "/metrics" else as_json
            body = (page(status) if self.path == "/" else render(plain)).encode()
            self.send_response(200)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
            """Count the error under the name of its status; nothing of the request becomes a name."""
            rejected[HTTPStatus(code).phrase] += 1
            super().send_error(code, explain=REMEDIES.get(HTTPStatus(code)))

        def log_error(self, *args: object) -> None:
            """Count a connection without a request in time; `send_error` has counted other errors."""
            if str(args[0]).startswith("Request timed out"):
                rejected["silent"] += 1

        def log_message(self, *args: object) -> None:
            """Log nothing."""

    return StatusPageHandler


def is_this_machine(host: str) -> bool:
    """Whether a Host header names the loopback interface, on which alone the page is served.

    A page of another site can let a name of its own mean 127.0.0.1 (DNS rebinding) and would read this one then. The
    browser sends that name here. A tunnel changes the port, so the port is not compared.
    """
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or ip_address(name).is_loopback
    except ValueError:
        return False


def page(status: SwarmStatus) -> str:
    """The status as a page that reloads itself."""
    console = Console(width=140, record=True, file=StringIO())
    console.print(table(status))
    return PAGE.format(html.escape(console.export_text()))


def as_json(plain: Mapping[str, Any]) -> str:
    """A status as one JSON object; NaN and infinities are null."""
    return json.dumps(_plain(plain))


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
