"""Tables of every command, at 60, 80 and 200 columns and in a pipe."""

import contextlib
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import interbasis
from command_line import Cli
from interbasis.show.declared_tables import DeclaredTables
from interbasis.show.tables import ResultTable
from widths import check_command, check_parts, printed

COMMANDS = {
    "show": ["runs/lib"],
    "show a model": ["modadd:{checkpoint}"],
    "compare": ["runs/lib", "runs/pca"],
    "modules": ["runs/lib", "--null-graphs", "1"],
    "ablate": ["runs/lib", "--edges", "--nodes", "--robust", "--intervals", "--tolerance", "0.5"],
    "curves": ["runs/lib"],
    "controls": ["runs/lib", "--bases", "lib", "--scrambles", "0", "--stressed", "lib", "--tolerance", "0.5"],
    "features": ["runs/lib"],
    "trace": ["runs/lib", "--sample", "3"],
    "steer": ["runs/lib", "--feature", "mlp_in.0:2", "--by", "4", "--sample", "3"],
    "export": ["runs/lib", "--graphml", "lib.graphml"],
    "doctor": [],
    "merge": ["runs/sharded/shards", "--out", "runs/sharded"],
}
"""Those whose tables are not tested where their results are: plan, reproduce, scoreboard."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, small_addition: Path, cli: Cli) -> Path:
    """Two runs, and a round of a build in shards."""
    folder = tmp_path_factory.mktemp("tables")
    for basis in ("lib", "pca"):
        run = folder / "runs" / basis
        assert cli("build", f"modadd:{small_addition}", "--basis", basis, "--out", run).code == 0
    sharded = ["build", f"modadd:{small_addition}", "--shard", "1/1", "--out", folder / "runs" / "sharded"]
    assert cli(*sharded).code == 0
    return folder


@pytest.mark.parametrize("name", COMMANDS)
def test_no_number_is_cut_at_any_width(
    name: str, folder: Path, small_addition: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    arguments = [argument.format(checkpoint=small_addition) for argument in COMMANDS[name]]
    check_command(name.partition(" ")[0], *arguments)


def test_build_prints_at_any_width_what_show_prints(
    small_addition: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    check_command(
        "build", f"modadd:{small_addition}", "--basis", "neuron", "--edge-group", "4", "--out", "run"
    )


def test_a_table_that_does_not_fit_is_printed_in_parts_or_as_blocks() -> None:
    rows = [
        ("attn_in.0", 1_234_567_890, 24_680, "the first feature of them all"),
        ("mlp_in.0", None, 13, "[not markup]"),
    ]
    head = ("layer", "a wide heading", "count", "what it is")
    table = ResultTable.from_cells("Title", head, rows, text=("what it is",))
    check_parts([table])
    wide, narrow, blocks = (printed([table], width) for width in ("80", "36", "20"))
    assert len([line for line in wide.splitlines() if "attn_in.0" in line]) == 1
    assert "[not markup]" in wide
    assert len([line for line in narrow.splitlines() if "attn_in.0" in line]) == 2
    assert "layer: attn_in.0" in blocks.splitlines()
    assert "count: 24,680" in blocks.splitlines()


def test_declared_columns_without_a_measurement_are_left_out_and_unknown_cells_are_dashes() -> None:
    tables = DeclaredTables("result_tables.toml")
    found = SimpleNamespace(name="a → b", robust=None, possible=1234, value=0.5)
    plain = tables("edges_required", [(found, "12", None, 13)], metric="accuracy", plain="plain.")
    assert plain.rows == (("a → b", "12", "1,234", "–", "0.50000", "13"),)
    assert plain.names[-2:] == ("accuracy", "all larger pass from")
    assert plain.note.endswith("plain.")
    found.robust = SimpleNamespace(count=3)
    robust = tables("edges_required", [(found, "12", 0.25, None)], metric="accuracy", plain="")
    assert robust.names[1] == "robust edges"
    assert robust.rows == (("a → b", "3", "12", "1,234", "0.25", "0.50000", "–"),)
    share = SimpleNamespace(total=float("nan"), arising=0.5, passed_on=2.0)
    assert tables("depth", [("output", share)]).rows == (("output", "–", "0.5", "2"),)


def test_of_many_layers_a_few_are_shown_unless_all_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    torch.manual_seed(0)
    steps = [step for _ in range(25) for step in (torch.nn.Linear(3, 3), torch.nn.ReLU())]
    network = interbasis.from_torch(torch.nn.Sequential(*steps, torch.nn.Linear(3, 2)))
    graph = interbasis.build(network, torch.randn(20, 3)).graph
    graph.save(tmp_path / "deep")
    monkeypatch.chdir(tmp_path)
    check_command("show", "deep")
    short, whole = cli("show", "deep").out, cli("show", "deep", "--all").out
    names = graph.layer_names
    assert len(names) == 27
    assert all(whole.count(f" {name} ") >= 3 for name in names[:-1])
    ends, _, directions = short.partition("Largest direction")
    directions, _, edges = directions.partition("Interaction edges")
    assert [name for name in names if f" {name} " in ends] == [*names[:6], *names[-6:]]
    assert edges.count("→") == 12
    shares = {name: found.share for name, found in graph.provenance.largest_directions.items()}
    printed = {name for name in names if f" {name} " in directions}
    assert len(printed) == 12
    assert min(shares[name] for name in printed) >= max(shares[name] for name in set(names) - printed)
    assert "12 of 27 node layers; " in " ".join(short.split())
    assert "interbasis show deep --all" in " ".join(short.split())
    assert "to see all" not in whole


def test_the_width_of_a_real_terminal_decides_and_it_shows_something_at_once(folder: Path) -> None:
    primary, secondary = pty.openpty()
    fcntl.ioctl(secondary, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 60, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    process = subprocess.Popen(
        [sys.executable, "-m", "interbasis", "show", "runs/lib"],
        cwd=folder, env=environment | {"TERM": "xterm"}, stdin=secondary, stdout=secondary, stderr=secondary,
    )  # fmt: skip
    os.close(secondary)
    screen = b""
    with contextlib.suppress(OSError):  # the other end is closed
        while block := os.read(primary, 65536):
            screen += block
    os.close(primary)
    assert process.wait() == 0
    before, _, tables = screen.decode().partition("Node layers")
    assert before.lstrip("\r").startswith("\x1b[2Kshow: loading …\r\x1b[2K")  # and removed again
    assert "…" not in tables
    assert max(len(re.sub(r"\x1b\[[\d;]*m", "", line)) for line in tables.splitlines()) <= 60
    assert "4.03e+11" in tables
