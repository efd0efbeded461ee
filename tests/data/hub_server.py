"""A Hub on 127.0.0.1, for tests: what huggingface_hub asks for, with a record of all that it asked.

Repositories are folders of files by commit; `main` is the commit that was published last. Connections can be
made to break.
"""

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit


@dataclass(frozen=True)
class Asked:
    """Bytes first … last − 1 of a file at a revision."""

    revision: str
    path: str
    first: int
    last: int


@dataclass
class Hub:
    """What a server knows and has seen."""

    address: str = ""
    commits: dict[str, dict[str, dict[str, bytes]]] = field(default_factory=dict)
    """Of a data set: files by commit, the newest one last."""
    asked: list[Asked] = field(default_factory=list)
    broken_answers: int = 0
    """How many of the next answers with bytes of files break off in the middle."""

    def publish(self, name: str, files: dict[str, bytes]) -> str:
        """A new commit of a data set."""
        commits = self.commits.setdefault(name, {})
        commit = hashlib.sha1(f"{name} {len(commits)}".encode()).hexdigest()
        commits[commit] = files
        return commit

    def commit(self, name: str, revision: str) -> str | None:
        commits = self.commits.get(name, {})
        if revision == "main" and commits:
            return list(commits)[-1]
        return revision if revision in commits else None

    def bytes_of(self, path: str) -> list[tuple[int, int]]:
        """The ranges of a file that were asked for."""
        return [(asked.first, asked.last) for asked in self.asked if asked.path == path]


@contextmanager
def hub() -> Iterator[Hub]:
    """A server while the block runs."""
    state = Hub()
    handler = type("Handler", (_Handler,), {"hub": state})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    state.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 2**16  # an answer in one piece: in two, the second waits 40 ms
    hub: Hub

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        if found := re.fullmatch(r"/api/datasets/([^/]+/[^/]+)(?:/revision/(.+))?", path):
            self._about(found[1], found[2] or "main")
        elif found := re.fullmatch(r"/api/datasets/([^/]+/[^/]+)/tree/([^/]+)", path):
            self._tree(found[1], found[2])
        elif found := re.fullmatch(r"/datasets/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self._file(found[1], found[2], found[3])
        else:
            self._answer(404, b"")

    def _about(self, name: str, revision: str) -> None:
        commit = self.hub.commit(name, revision)
        if commit is None:
            missing = "RevisionNotFound" if name in self.hub.commits else "RepoNotFound"
            self._answer(404, b"{}", {"X-Error-Code": missing})
            return
        siblings = [{"rfilename": path} for path in self.hub.commits[name][commit]]
        self._answer(200, json.dumps({"id": name, "sha": commit, "siblings": siblings}).encode())

    def _tree(self, name: str, revision: str) -> None:
        commit = self.hub.commit(name, revision)
        files = self.hub.commits[name][commit or ""]
        rows = [
            {"type": "file", "path": path, "size": len(content), "oid": _hash(content)}
            for path, content in files.items()
        ]
        self._answer(200, json.dumps(rows).encode())

    def _file(self, name: str, revision: str, path: str) -> None:
        commit = self.hub.commit(name, revision)
        content = self.hub.commits.get(name, {}).get(commit or "", {}).get(path)
        if content is None:
            self._answer(404, b"", {"X-Error-Code": "EntryNotFound"})
            return
        about = {"ETag": f'"{_hash(content)}"', "X-Repo-Commit": str(commit), "Accept-Ranges": "bytes"}
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        first, last = 0, len(content)
        if wanted:
            first, last = int(wanted[1]), int(wanted[2]) + 1 if wanted[2] else last
            about["Content-Range"] = f"bytes {first}-{last - 1}/{len(content)}"
        if self.command == "GET":
            self.hub.asked.append(Asked(revision, path, first, last))
        self._answer(206 if wanted else 200, content[first:last], about)

    def _answer(self, status: int, content: bytes, headers: dict[str, str] | None = None) -> None:
        breaks = self.command == "GET" and "/resolve/" in self.path and self.hub.broken_answers > 0
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if breaks:
            self.hub.broken_answers -= 1
            self.wfile.write(content[: len(content) // 2])
            self.close_connection = True
        elif self.command == "GET":
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Nothing is printed."""


def _hash(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()
