"""Strings that a run stores reach a terminal with their control characters escaped."""

import json
import logging
import re
from pathlib import Path
from shutil import copytree

import pytest

from command_line import Cli
from interbasis import InterbasisError
from interbasis.base.messages import logger, printable
from interbasis.graph.store import load

CLIPBOARD = "\x1b]52;c;ZXZpbA==\x07"
"""OSC 52: a terminal that knows it puts this into the clipboard."""
HOSTILE = CLIPBOARD + "\x9b31m\r\x08\x7f\u202e"
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


@pytest.fixture(scope="module")
def clean_run(tmp_path_factory: pytest.TempPathFactory, cli: Cli) -> Path:
    run = tmp_path_factory.mktemp("names") / "run"
    arguments = ("modadd", "--data", "modadd,samples=64", "--layers", "mlp_in.0,unembed,output")
    assert cli("build", *arguments, "--out", run).code == 0
    for command in (
        ("curves",),
        ("modules",),
        ("features", "--top", "4"),
        ("trace", "--sample", "1"),
    ):
        ended = cli(command[0], run, *command[1:])
        assert ended.code == 0, ended.err
    return run


@pytest.fixture
def hostile_run(clean_run: Path, tmp_path: Path) -> Path:
    """The same run, as a stranger gives it: names of layers, model and labels hold control characters."""
    run = copytree(clean_run, tmp_path / "run")
    for path in run.rglob("*.json"):
        values = json.loads(path.read_text())
        path.write_text(json.dumps(_hostile(values)))
    return run


def _hostile(value: object) -> object:
    if isinstance(value, dict):
        return {_hostile_layer(key): _hostile_name(key, item) for key, item in value.items()}
    if isinstance(value, list):
        return [_hostile(item) for item in value]
    return _hostile_layer(value) if isinstance(value, str) else value


def _hostile_layer(text: str) -> str:
    return text.replace("unembed", f"un{HOSTILE}embed")


def _hostile_name(key: str, value: object) -> object:
    free = ("family", "model", "label", "prompt", "spec", "text")
    return value + HOSTILE if key in free and isinstance(value, str) else _hostile(value)


@pytest.mark.parametrize(
    "command",
    [("show",), ("modules",), ("compare",), ("report", "--out", "out"), ("figures", "--out", "out")],
)
def test_tables_and_messages_hold_no_control_characters(
    cli: Cli,
    hostile_run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: tuple[str, ...],
) -> None:
    monkeypatch.chdir(tmp_path)
    runs = [hostile_run, hostile_run] if command[0] == "compare" else [hostile_run]
    ended = cli(command[0], *runs, *command[1:])
    assert ended.code == 0, ended.err
    assert CONTROL.search(ended.out + ended.err) is None
    if command[0] in ("show", "modules", "compare"):
        assert r"\x1b]52;c;" in re.sub(r"\s", "", ended.out)
        as_json = cli(command[0], *runs, "--json")
        assert CONTROL.search(as_json.out) is None
        assert json.dumps(HOSTILE)[1:-1] in as_json.out
        assert as_json.json


def test_results_of_stages_hold_none(cli: Cli, hostile_run: Path) -> None:
    for command in (("ablate",), ("trace", "--sample", "0"), ("features", "--top", "2")):
        ended = cli(command[0], hostile_run, *command[1:], "--model", "modadd", "--data", "modadd,samples=64")
        assert CONTROL.search(ended.out + ended.err) is None
        assert "Traceback" not in ended.err


def test_errors_hold_none(cli: Cli, hostile_run: Path) -> None:
    config = hostile_run / "config.json"
    values = json.loads(config.read_text())
    for name, value in (
        ("format", HOSTILE),
        ("schema", HOSTILE),
        ("tensors", {"file": HOSTILE, "sha256": ""}),
    ):
        config.write_text(json.dumps(values | {name: value}))
        ended = cli("show", hostile_run, "--verbose")
        assert ended.code == 2
        assert CONTROL.search(ended.out + ended.err) is None
        with pytest.raises(InterbasisError) as caught:
            load(hostile_run)
        assert CONTROL.search(str(caught.value)) is None


def test_a_graph_shows_its_layers_without_them(hostile_run: Path) -> None:
    assert CONTROL.search(repr(load(hostile_run))) is None


def test_log_records_hold_none(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "interbasis"):
        logger.info(f"resuming {HOSTILE}")
        logger.info("resuming %s", HOSTILE)
    assert len(caplog.messages) == 2
    assert all(CONTROL.search(message) is None for message in caplog.messages)


def test_progress_holds_none(capsys: pytest.CaptureFixture[str]) -> None:
    from interbasis.base.progress import progress_bar

    with progress_bar(True) as advance:
        advance(f"[red]{CLIPBOARD}", 1, 2)
    shown = capsys.readouterr().err
    assert "]52;c;ZXZpbA==\x07" not in shown
    assert r"[red]\x1b]52" in shown


def test_printable_leaves_text_as_it_is() -> None:
    text = "Ê² of café, 日本語, 🙂\u200d, tab\tand\nlines"
    assert printable(text) == text
    assert printable("a\x1b\x9b\u202e\ud800") == r"a\x1b\x9b\u202e\ud800"


def test_half_a_surrogate_pair_in_the_name_of_a_layer_leaves_json_valid(
    cli: Cli, clean_run: Path, tmp_path: Path
) -> None:
    run = copytree(clean_run, tmp_path / "run")
    config = run / "config.json"
    config.write_text(config.read_text().replace("unembed", "un\\ud800embed"))
    assert "un\ufffdembed" in cli("show", run, "--json").json["layers"]
    assert "un\ufffdembed" in cli("show", run).out
