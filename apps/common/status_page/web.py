"""The status of a system over HTTP, read only: a page, a JSON object, and perhaps metrics as Prometheus reads them.

Every request is answered from the last status. The server listens on 127.0.0.1 alone, reads no bodies, serves few
requests at once, and counts those that it rejects.
"""

import html
import json
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import StringIO
from ipaddress import ip_address
from threading import BoundedSemaphore, Thread
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar
from urllib.parse import urlsplit

from rich.console import Console, RenderableType

from apps.common.status_page.course import STYLE, Course
from pipelined.errors import UsageError

PAGE = """<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="2"><title>{}</title>
<style>body{{font:14px/1.4 monospace;margin:2em}}{}</style><pre>{}</pre>{}"""

MAX_CONNECTIONS = 16
"""The most connections at once. Each has a thread, even while it is silent."""


KINDS = {"/": "text/html", "/status.json": "application/json", "/metrics": "text/plain"}
"""The pages, with the type of each."""
REMEDIES = {
    HTTPStatus.MISDIRECTED_REQUEST: "the Host header names another machine; open http://127.0.0.1:PORT/, "
    "from elsewhere by way of: ssh -L PORT:127.0.0.1:PORT MACHINE"
}
"""The remedy on the page of an HTTP status."""


class ShownStatus(Protocol):
    """The status of a system at one time."""

    def to_dict(self) -> Mapping[str, Any]:
        """The status as JSON shows it."""


S = TypeVar("S", bound=ShownStatus)


@dataclass(frozen=True)
class Rendering(Generic[S]):
    """The page of the status of one system.

    Args:
        title: of the page.
        table: the status as rich prints it.
        metrics: the plain status as Prometheus reads it; None: it has no metrics.
    """

    title: str
    table: Callable[[S], RenderableType]
    metrics: Callable[[Mapping[str, Any]], str] | None = None


class Web(Generic[S]):
    """A context in which the page is served.

    Args:
        port: 0 for any free one.

    Attributes:
        address: of the page.
        last: the status that is shown; each one that is set is also drawn into the course of the run.
        rejected: the number of rejected requests, by reason.
    Raises:
        UsageError: the port cannot be listened on, such as one in use.
    """

    def __init__(self, port: int, rendering: Rendering[S]):
        self._last: S | None = None
        self._course = Course()
        self.rejected = Counter[str]()
        try:
            handler = _handler_class(lambda: self.last, rendering, self._course, self.rejected)
            self._server = _Server(port, handler, self.rejected)
        except OSError as error:
            fact = f"--web cannot listen on port {port} ({error.strerror})"
            raise UsageError(f"{fact}; name another port, or 0 for any free one") from error
        self.address = f"http://127.0.0.1:{self._server.server_port}/"

    @property
    def last(self) -> S | None:
        return self._last

    @last.setter
    def last(self, status: S) -> None:
        self._last = status
        self._course.add(time.monotonic(), status.to_dict())

    def __enter__(self) -> "Web[S]":
        self._thread = Thread(target=self._server.serve_forever, args=(0.1,), name="web", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    """A server that closes connections beyond MAX_CONNECTIONS."""

    request_queue_size = 4 * MAX_CONNECTIONS

    def __init__(self, port: int, handler: type[BaseHTTPRequestHandler], rejected: Counter[str]):
        super().__init__(("127.0.0.1", port), handler)
        self._slots = BoundedSemaphore(MAX_CONNECTIONS)
        self._rejected = rejected

    def process_request(self, request: Any, caller: Any) -> None:
        if self._slots.acquire(blocking=False):
            super().process_request(request, caller)
        else:
            self._rejected["too many callers"] += 1
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, caller: Any) -> None:
        try:
            super().process_request_thread(request, caller)
        finally:
            self._slots.release()

    def handle_error(self, request: Any, caller: Any) -> None:
        """Count a connection that the browser closed early; report anything else as an error of this program."""
        if isinstance(sys.exception(), OSError):
            self._rejected["hung up"] += 1
        else:
            super().handle_error(request, caller)


def _handler_class(
    last_status: Callable[[], S | None], rendering: Rendering[S], course: Course, rejected: Counter[str]
) -> type[BaseHTTPRequestHandler]:
    renders: dict[str, Callable[[S], str]] = {
        "/": lambda status: page(rendering, status, course.draw()),
        "/status.json": lambda status: to_json({**status.to_dict(), "web_rejected": dict(rejected)}),
    }
    metrics = rendering.metrics
    if metrics is not None:
        renders["/metrics"] = lambda status: metrics({**status.to_dict(), "web_rejected": dict(rejected)})

    class StatusPageHandler(BaseHTTPRequestHandler):
        timeout = 5  # seconds after which a silent connection is closed

        def do_GET(self) -> None:
            if not all(map(is_this_machine, self.headers.get_all("Host", []))):
                return self.send_error(HTTPStatus.MISDIRECTED_REQUEST)
            render = renders.get(self.path)
            status = last_status()
            if render is None or status is None:
                return self.send_error(404 if render is None else 503)
            body = render(status).encode()
            self.send_response(200)
            self.send_header("Content-Type", f"{KINDS[self.path]}; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        do_HEAD = do_GET

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


def page(rendering: Rendering[S], status: S, course: str = "") -> str:
    """The status as a page that reloads itself, above the drawing of a course."""
    console = Console(width=140, record=True, file=StringIO())
    console.print(rendering.table(status))
    return PAGE.format(rendering.title, STYLE, html.escape(console.export_text()), course)


def to_json(plain: Mapping[str, Any]) -> str:
    """A status as one JSON object; NaN and infinities are null."""
    return json.dumps(_json_value(plain))


def _json_value(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _json_value(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_json_value(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
