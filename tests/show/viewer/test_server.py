"""The server answers its own page, saves notes with its token, and refuses everything else."""

import http.client
import json
import socket
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any
from urllib.parse import quote

import pytest

from interbasis.analysis.stored_results import load_result
from interbasis.base.errors import InterbasisError
from interbasis.run.run import open_run
from interbasis.show.viewer import ViewerServer
from interbasis.show.viewer.notes import Notes, notes_version
from show.viewer.conftest import serving

NOTES = {
    "pinned": [{"layer": "mlp_in.0", "index": 3}],
    "names": [{"layer": "mlp_in.0", "index": 3, "name": "<b>bold</b>"}],
    "groups": [{"name": "carry", "members": [{"layer": "unembed", "index": 1}]}],
}


def ask(
    server: ViewerServer,
    method: str = "GET",
    path: str = "/",
    body: bytes | None = None,
    host: str | None = None,
    **headers: Any,
) -> tuple[int, bytes, dict[str, str]]:
    """A request with the secret of the address; a path that is absolute or relative is sent as it is."""
    return ask_without_secret(server, method, with_secret(server, path), body, host, **headers)


def with_secret(server: ViewerServer, path: str) -> str:
    return f"/{server.secret}{path}" if path.startswith("/") else path


def ask_without_secret(
    server: ViewerServer,
    method: str = "GET",
    path: str = "/",
    body: bytes | None = None,
    host: str | None = None,
    **headers: Any,
) -> tuple[int, bytes, dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    try:
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        connection.putheader("Host", host or f"127.0.0.1:{server.server_port}")
        for name, value in headers.items():
            connection.putheader(name.replace("_", "-"), value)
        if body is not None and "Content_Length" not in headers:
            connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body)
        answer = connection.getresponse()
        return answer.status, answer.read(), dict(answer.getheaders())
    finally:
        connection.close()


def put(
    server: ViewerServer, notes: Any, path: str = "/notes/0", **headers: Any
) -> tuple[int, bytes, dict[str, str]]:
    """Notes written by who has just seen the newest ones."""
    headers = writing(server) | headers
    return ask(server, "PUT", path, json.dumps(notes).encode(), **headers)


def writing(server: ViewerServer) -> dict[Any, Any]:
    """Headers of the page that has seen the run's newest notes."""
    return {
        "X_Interbasis_Token": server.token,
        "Content_Type": "application/json",
        "If_Match": f'"{notes_version(server.runs[0])}"',
    }


def test_the_page_comes_with_strict_headers(server: ViewerServer) -> None:
    status, body, headers = ask(server)
    assert status == 200
    assert b"<!doctype html>" in body
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert "Access-Control-Allow-Origin" not in headers
    assert ask(server, "HEAD")[:2] == (200, b"")


@pytest.mark.parametrize(
    "path",
    [
        "/config.json", "/../config.json", "/..%2fconfig.json", "/%2e%2e/config.json",
        "/%2e%2e%2fconfig.json",
        "//etc/passwd", "/etc/passwd", "/./config.json", "/static/../page.py", "/..\\config.json", "/link",
        "/link/secret.txt", "http://127.0.0.1/etc/passwd", "file:///etc/passwd", "/notes/0", "/%00",
        "*", "/index.html",
        "/....//....//etc/passwd", "/%252e%252e%252fconfig.json",
    ],
)  # fmt: skip
def test_there_is_nothing_but_the_page(server: ViewerServer, lib: Path, tmp_path: Path, path: str) -> None:
    (tmp_path / "secret.txt").write_text("secret")
    (lib / "link").symlink_to(tmp_path)
    status, body, _ = ask(server, path=path)
    assert status == (404 if path.startswith("/") else 403)
    assert b"secret" not in body
    assert b"root:" not in body


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1", "127.0.0.1:1", "localhost.evil.example:{port}", ""]
)
def test_other_hosts_are_refused(server: ViewerServer, host: str) -> None:
    host = host.format(port=server.server_port)
    status, body, _ = ask(server, host=host) if host else raw(server, b"GET / HTTP/1.1\r\n\r\n")
    assert status == 421
    assert server.token.encode() not in body
    assert server.secret.encode() not in body
    evil = host or "evil.example"
    assert put(server, NOTES, host=evil)[0] == 421


def raw(server: ViewerServer, request: bytes) -> tuple[int, bytes, dict[Any, Any]]:
    """What comes back for these very bytes."""
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=10) as connection:
        connection.sendall(request)
        answer = b""
        while part := connection.recv(65536):
            answer += part
    return int(answer.split()[1]), answer, {}


def test_two_host_headers_are_refused(server: ViewerServer) -> None:
    request = f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{server.server_port}\r\nHost: evil.example\r\n\r\n"
    assert raw(server, request.encode())[0] == 421


def test_localhost_is_this_machine_too(server: ViewerServer) -> None:
    assert ask(server, host=f"localhost:{server.server_port}")[0] == 200


def test_it_listens_on_this_machine_only(server: ViewerServer) -> None:
    assert server.server_address[0] == "127.0.0.1"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"X_Interbasis_Token": "guess"}, 403),
        ({"X_Interbasis_Token": ""}, 403),
        ({"X_Interbasis_Token": "\u00e9"}, 403),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Content_Type": "text/plain"}, 415),
        ({"Content_Length": "99999999"}, 413),
        ({"Content_Length": "-1"}, 411),
        ({"Content_Length": "many"}, 411),
    ],
)
def test_writes_without_the_token_or_in_another_form_are_refused(
    server: ViewerServer, lib: Path, headers: dict[str, str], status: int
) -> None:
    assert put(server, NOTES, **headers)[0] == status
    assert not (lib / "notes.json").exists()


def test_notes_are_saved_to_the_run_and_come_back_with_the_page(server: ViewerServer, lib: Path) -> None:
    status, body, _ = put(server, NOTES)
    assert status == 200
    assert json.loads(body) == NOTES == load_result(lib, Notes).model_dump()
    assert b"\\u003cb\\u003ebold" in ask(server)[1]
    assert not list(lib.glob(".*"))


@pytest.mark.parametrize(
    "notes",
    [
        [], {"pinned": 3}, {"more": []}, {"pinned": [{"layer": "nowhere", "index": 0}]},
        {"pinned": [{"layer": "mlp_in.0", "index": 10**6}]}, {"pinned": [{"layer": "mlp_in.0", "index": -1}]},
        {"names": [{"layer": "mlp_in.0", "index": 1, "name": "x" * 10_001}]}, "text", None,
        {"names": [{"layer": "mlp_in.0", "index": 1, "name": "\ud800"}]},
    ],
)  # fmt: skip
def test_notes_that_are_none_are_refused(server: ViewerServer, lib: Path, notes: Any) -> None:
    assert put(server, notes)[0] == 400
    assert not (lib / "notes.json").exists()


def test_broken_or_endless_json_is_refused(server: ViewerServer) -> None:
    headers = writing(server)
    for body in (b"{", b"[" * 100_000, b"\xff", b"NaN"):
        assert ask(server, "PUT", "/notes/0", body, **headers)[0] == 400


@pytest.mark.parametrize("path", ["/notes/1", "/notes/-1", "/notes/0/", "/notes/../0", "/config.json", "/"])
def test_only_notes_of_the_runs_can_be_written(server: ViewerServer, path: str) -> None:
    assert put(server, NOTES, path)[0] == 404


@pytest.mark.parametrize("method", ["POST", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT"])
def test_other_methods_are_not_there(server: ViewerServer, method: str) -> None:
    assert ask(server, method)[0] == 501


def test_the_page_follows_the_run(server: ViewerServer, lib: Path) -> None:
    before = ask(server)[1]
    open_run(lib).ablate(tolerance=1, data="modadd,samples=100", stable=False)
    assert ask(server)[1] != before


def test_a_port_in_use_is_refused(server: ViewerServer, lib: Path) -> None:
    with pytest.raises(InterbasisError, match="could not listen on port"):
        ViewerServer([lib], server.server_port)


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "OPTIONS"])
def test_without_the_secret_of_the_address_nothing_is_told_or_written(
    server: ViewerServer, lib: Path, method: str
) -> None:
    """As another user of the machine asks, who knows the port but not what `view` printed."""
    body = json.dumps(NOTES).encode() if method == "PUT" else None
    for path in ("/", "/notes/0", "/guess/", "/guess/notes/0", "", "//", "/%00/", "*", server.secret + "/"):
        status, answer, headers = ask_without_secret(server, method, path, body, **writing(server))
        assert (path, status) == (path, 403)
        assert len(answer) < 200
        assert server.token.encode() not in answer
        assert server.secret.encode() not in answer
        assert server.secret not in str(headers)
    assert not (lib / "notes.json").exists()


def test_a_part_of_the_secret_is_not_enough(server: ViewerServer) -> None:
    for guess in (server.secret[:-1], server.secret + "x", server.secret.swapcase(), "é" * 43, server.token):
        assert ask_without_secret(server, path=f"/{quote(guess)}/")[0] == 403
    assert server.url == f"http://127.0.0.1:{server.server_port}/{server.secret}/"
    assert len(server.secret) >= 40


def test_every_server_has_a_secret_of_its_own(server: ViewerServer, lib: Path) -> None:
    with serving(lib) as other:
        assert other.secret != server.secret
        assert ask_without_secret(other, path=f"/{server.secret}/")[0] == 403


def test_200_requests_at_once_are_all_answered(server: ViewerServer) -> None:
    """More than wait in the queue of Python's own server, which holds 5."""
    ready = Barrier(200)

    def request(_: int) -> int:
        ready.wait()
        return ask(server)[0]

    with ThreadPoolExecutor(200) as pool:
        assert Counter(pool.map(request, range(200))) == {200: 200}
