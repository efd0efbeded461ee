"""A server for one page on this machine, for one person.

It maps no path to a file: `GET /SECRET/` is the page, `PUT /SECRET/notes/K` saves the notes of run K, and
every other request is refused. It listens on 127.0.0.1, which every user of the machine can reach, so every
request must name the secret of the address that was printed. The secret is a part of the path and no cookie,
since browsers send the cookies of 127.0.0.1 to all of its ports, those of other users among them. The server
answers only to that name or localhost (so that no other site can reach it under a name of its own), and
writes only with the token that the page was given.

A write names the version of the notes that it replaces, `If-Match: "VERSION"`. Where somebody else has
written since, it is refused with 409, and the answer holds the notes as they are, with their version as ETag.

A browser is not started with the address, since every user of a machine sees the arguments of all processes.
It is given a file that only this user can read and that leads there.
"""

import json
import secrets
import tempfile
import webbrowser
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock

from interbasis.analysis.stages.trace import TraceResult
from interbasis.base.errors import Explained, InterbasisError
from interbasis.show.html import render
from interbasis.show.viewer.notes import StaleNotesError, save_notes
from interbasis.show.viewer.page import read_files, runs_html

MAX_NOTES_BYTES = 2_000_000
"""Longest notes that are read."""
TOKEN_HEADER = "X-Interbasis-Token"
GRAPH_HEADER = "X-Interbasis-Graph"
"""SHA-256 of the graph that the page shows, which may have been built again since."""
TRACES = TraceResult.file
"""Folder of a run whose time changes with every trace that is stored."""
MAX_WAITING_CONNECTIONS = 1024
"""Connections that may wait to be accepted; further ones time out."""


class ViewerServer(ThreadingHTTPServer):
    """Serves the page of one or two runs until it is shut down."""

    daemon_threads = True
    request_queue_size = MAX_WAITING_CONNECTIONS

    def __init__(self, runs: Sequence[str | Path], port: int = 0) -> None:
        self.runs = [Path(run) for run in runs]
        self.secret, self.token = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
        self.files = read_files(self.runs)
        self._page: tuple[object, bytes] | None = None
        self._lock = Lock()
        self.page()  # a run that cannot be shown is refused before anything is served
        problem, remedy = (
            f"could not listen on port {port} of 127.0.0.1",
            "leave out --port to use a free one",
        )
        with Explained(problem, OSError, OverflowError, remedy=remedy):
            super().__init__(("127.0.0.1", port), _PageHandler)

    @property
    def url(self) -> str:
        """The address of the page, with its secret."""
        return f"http://127.0.0.1:{self.server_port}/{self.secret}/"

    def page(self) -> bytes:
        """The page as the runs are now; made again only when one of their files has changed."""
        with self._lock:
            state = [_file_stamps(run) for run in self.runs]
            if self._page is None or self._page[0] != state:
                self._page = state, runs_html(self.runs, self.token, self.files).encode()
            return self._page[1]

    def save(self, k: int, notes: object, version: str, graph: str | None) -> tuple[str, str]:
        """Save notes in place of those of this version; they come back as JSON, with their own version."""
        with self._lock:
            saved, version = save_notes(self.runs[k], notes, version, graph)
        return saved.to_json(), version


class _PageHandler(BaseHTTPRequestHandler):
    """The page and PUT notes/K, both under the secret; everything else is refused."""

    server: ViewerServer
    server_version = "interbasis"
    sys_version = ""
    protocol_version = "HTTP/1.1"
    timeout = 30

    def parse_request(self) -> bool:
        """Read the request's head; whatever its method, it is refused without the secret."""
        return super().parse_request() and self._is_local_host() and self._has_secret()

    def do_GET(self) -> None:
        if self._place() != "":
            self._refuse(HTTPStatus.NOT_FOUND, "there is only the page and what it holds")
            return
        try:
            self._answer(HTTPStatus.OK, "text/html; charset=utf-8", self.server.page())
        except InterbasisError as error:
            self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, str(error))

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_PUT(self) -> None:
        if not self._may_write():
            return
        places = {f"notes/{k}": k for k in range(len(self.server.runs))}
        if self._place() not in places:
            self._refuse(HTTPStatus.NOT_FOUND, "there are only the notes of the runs")
            return
        body, version = self._body(), self.headers.get("If-Match")
        if body is None:
            return
        if version is None:
            self._refuse(HTTPStatus.PRECONDITION_REQUIRED, "say which version of the notes this replaces")
            return
        status = HTTPStatus.OK
        try:
            k, notes = places[self._place()], json.loads(body)
            graph = self.headers.get(GRAPH_HEADER)
            saved, version = self.server.save(k, notes, version.strip('"'), graph)
        except StaleNotesError as error:
            status, saved, version = HTTPStatus.CONFLICT, error.notes.to_json(), error.version
        except (ValueError, RecursionError) as error:  # InterbasisError is one, and so is broken JSON
            self._refuse(HTTPStatus.BAD_REQUEST, str(error))
            return
        self._answer(status, "application/json", saved.encode(), ETag=f'"{version}"')

    def _place(self) -> str:
        """The path behind the secret: "" is the page; a query does not count."""
        return self.path.partition("?")[0].removeprefix(f"/{self.server.secret}/")

    def _has_secret(self) -> bool:
        """Refuse everybody who was not given the address; how long it takes says nothing about the secret."""
        received = self.path.encode("utf-8", "replace")[1 : len(self.server.secret) + 2]
        if self.path.startswith("/") and secrets.compare_digest(received, f"{self.server.secret}/".encode()):
            return True
        self._refuse(HTTPStatus.FORBIDDEN, "this page needs the whole address that interbasis view printed")
        return False

    def _hosts(self) -> list[str]:
        return [f"{name}:{self.server.server_port}" for name in ("127.0.0.1", "localhost")]

    def _is_local_host(self) -> bool:
        """Refuse requests that came under another name: DNS rebinding, proxies, absolute URLs."""
        if self.headers.get_all("Host", []) in [[name] for name in self._hosts()]:
            return True
        self._refuse(HTTPStatus.MISDIRECTED_REQUEST, "this server answers on 127.0.0.1 only")
        return False

    def _may_write(self) -> bool:
        token = self.headers.get(TOKEN_HEADER, "").encode("utf-8", "replace")
        allowed = [None, *(f"http://{host}" for host in self._hosts())]
        if self.headers.get("Origin") in allowed and secrets.compare_digest(
            token, self.server.token.encode()
        ):
            return True
        self._refuse(HTTPStatus.FORBIDDEN, "writing needs the token of the page")
        return False

    def _body(self) -> bytes | None:
        length = self.headers.get("Content-Length", "")
        if self.headers.get("Transfer-Encoding") or not (length.isascii() and length.isdigit()):
            self._refuse(HTTPStatus.LENGTH_REQUIRED, "say how long the notes are")
        elif int(length) > MAX_NOTES_BYTES:
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"notes have at most {MAX_NOTES_BYTES:,} bytes")
        elif self.headers.get_content_type() != "application/json":
            self._refuse(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "notes are application/json")
        else:
            return self.rfile.read(int(length))
        return None

    def _refuse(self, status: HTTPStatus, reason: str) -> None:
        """Say no; the connection is closed, for a body may not have been read."""
        self.close_connection = True
        self._answer(status, "text/plain; charset=utf-8", (reason + "\n").encode("utf-8", "replace"))

    def _answer(self, status: HTTPStatus, kind: str, body: bytes, **more: str) -> None:
        self.send_response(status)
        headers = more | {
            "Content-Type": kind,
            "Content-Length": str(len(body)),
            "Cache-Control": "no-store",
            "Content-Security-Policy": self.server.files.policy("'self'") + "; frame-ancestors 'none'",
            "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "DENY",
            "Referrer-Policy": "no-referrer",
            "Cross-Origin-Opener-Policy": "same-origin",
            "Cross-Origin-Resource-Policy": "same-origin",
        }
        for name, value in headers.items():
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Quiet: the terminal belongs to the person."""


def _file_stamps(run: Path) -> list[tuple[str, int, int]]:
    """Names, times and sizes of a run's files and of the folder of its traces."""
    try:
        return [
            (path.name, (status := path.lstat()).st_mtime_ns, status.st_size)
            for path in sorted(run.iterdir())
            if path.suffix in (".json", ".safetensors") or path.name == TRACES
        ]
    except OSError:
        return []


@contextmanager
def opened_in_browser(url: str, folder: Path) -> Iterator[None]:
    """Open a page in the browser; the file that leads there is removed at the end.

    Args:
        url: Address of the page.
        folder: Where the file goes, if it can be written to: browsers that are confined to the user's own
            files cannot read the system's folder of temporary ones, which is used otherwise.
    """
    try:
        handle, name = tempfile.mkstemp(prefix=".view-", suffix=".html", dir=folder)
    except OSError:
        handle, name = tempfile.mkstemp(prefix="interbasis-view-", suffix=".html")
    file = Path(name).resolve()
    template = (Path(__file__).parent / "forward.html").read_text(encoding="utf-8")
    try:
        with open(handle, "w", encoding="utf-8") as forward:
            forward.write(render(template, url=url))
        webbrowser.open(file.as_uri())
        yield
    finally:
        file.unlink(missing_ok=True)
