"""`interbasis view` in a process of its own, with a browser that writes down what it was started with."""

import json
import os
import signal
import stat
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

BROWSER = """#!{python}
import os, re, stat, sys, urllib.parse, json
file = urllib.parse.urlparse(sys.argv[1])
path = urllib.parse.unquote(file.path)
seen = {{
    "arguments": sys.argv[1:], "scheme": file.scheme, "file": path, "text": open(path).read(),
    "mode": stat.S_IMODE(os.stat(path).st_mode),
}}
with open({out!r} + ".new", "w") as out:
    json.dump(seen, out)
os.rename({out!r} + ".new", {out!r})
"""


@pytest.fixture
def browsed(tmp_path: Path) -> Path:
    """Where the browser writes what it saw."""
    out, script = tmp_path / "browsed.json", tmp_path / "browser"
    script.write_text(BROWSER.format(python=sys.executable, out=str(out)))
    script.chmod(0o755)
    return out


def wait_for(file: Path) -> dict[str, Any]:
    for _ in range(600):
        if file.exists():
            return json.loads(file.read_text())
        time.sleep(0.05)
    raise AssertionError(f"{file.name} did not appear")


def test_the_secret_is_printed_and_is_no_argument_of_the_browser(lib: Path, browsed: Path) -> None:
    """Other users of the machine see the arguments of all processes."""
    environment = os.environ | {"BROWSER": f"{browsed.parent / 'browser'} %s"}
    code = "from interbasis.cli import main; main()"
    command = [sys.executable, "-c", code, "view", str(lib), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            url = json.loads(process.stdout.readline())["url"]
            seen = wait_for(browsed)
            assert "<!doctype html>" in page_at(url)
            with pytest.raises(urllib.error.HTTPError) as refused:
                page_at(url.rsplit("/", 2)[0] + "/")
            with refused.value as answer:
                assert answer.code == 403
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(20)
    secret = url.split("/")[-2]
    assert len(secret) > 40
    assert secret not in " ".join(seen["arguments"])
    assert seen["scheme"] == "file"
    assert seen["mode"] == stat.S_IRUSR | stat.S_IWUSR
    assert f"0; url={url}" in seen["text"]
    assert "no-referrer" in seen["text"]
    assert process.returncode == 0
    assert not Path(seen["file"]).exists()
    assert not list(lib.glob(".*"))


def page_at(url: str) -> str:
    with urllib.request.urlopen(url) as answer:
        return answer.read().decode()
