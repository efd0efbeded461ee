"""The command line as a person or a script would use it."""

import importlib
import inspect
import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from cyclopts import App
from safetensors.torch import save_file

import interbasis
import interbasis_studies.cli
from command_line import Cli
from interbasis.analysis.summary import summarise
from interbasis.cli import app, command_groups
from interbasis.graph.store import load
from interbasis.show.result_tables import summary_tables
from interbasis_studies.training.modadd import Recipe, initial_weights


def test_build_writes_a_run_and_show_reads_it(cli: Cli, small_addition: Path, tmp_path: Path) -> None:
    code, out, err = cli("build", f"modadd:{small_addition}", "--basis", "lib", "--out", tmp_path / "run")
    assert (code, err) == (0, "")
    assert "attn_in.0 → mlp_in.0" in out
    code, shown, _ = cli("show", tmp_path / "run")
    assert code == 0
    assert "Node layers" in shown
    graph = load(tmp_path / "run")
    assert graph.provenance.model == f"modadd:{os.path.relpath(small_addition)}"
    assert graph.provenance.samples["data"] == 36


@pytest.mark.parametrize("basis", ["lib", "gib", "pca", "neuron", "random"])
def test_json_is_for_machines(cli: Cli, small_addition: Path, tmp_path: Path, basis: str) -> None:
    arguments = ["build", f"modadd:{small_addition}", "--basis", basis, "--out", tmp_path / "run", "--json"]
    group = "positions" if basis == "pca" else "4"
    summary = cli(*arguments, "--edge-method", "exact", "--edge-group", group).json
    graph = load(tmp_path / "run")
    assert summary["basis"] == basis
    features = {name: row["features"] for name, row in summary["layers"].items()}
    assert features == {layer.name: layer.features for layer in graph.layers}
    assert list(features) == ["attn_in.0", "mlp_in.0", "unembed", "output"]
    assert summary["sections"]["attn_in.0"]["largest"] == graph.edges[0][1:, 1:].max().item()
    # one output position: exact with "positions"
    assert (summary["sections"]["mlp_in.0"]["median_relative_error"] > 0) == (group == "4")
    assert cli("show", tmp_path / "run", "--json").json == summary


def test_the_number_of_edges_that_carry_a_share_is_the_smallest(
    cli: Cli, small_addition: Path, tmp_path: Path
) -> None:
    built = cli("build", f"modadd:{small_addition}", "--out", tmp_path / "run", "--json").json
    edges = load(tmp_path / "run").edges[1][1:, 1:].square().flatten().sort(descending=True).values
    count = built["sections"]["mlp_in.0"]["edges_for_90_percent"]
    assert edges[:count].sum() >= 0.9 * edges.sum() > edges[: count - 1].sum()


def test_a_summary_of_nothing_counts_nothing(tmp_path: Path) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    module[0].weight.data.zero_()
    graph = interbasis.build(
        interbasis.from_torch(module), torch.randn(20, 3), basis="neuron", edge_group=4
    ).graph
    first = summarise(graph).sections[graph.section_names[0]]
    assert (first.edges, first.edges_for_90_percent, first.median_relative_error) == (12, 0, 0)
    assert summary_tables(summarise(graph), "nowhere")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["build", "modadd:/nowhere/x.safetensors", "--out", "OUT"], "there is no such file"),
        (["build", "bert:x", "--out", "OUT"], "expected a model as modadd:PATH"),
        (["build", "CHECKPOINT", "--out", "OUT", "--basis", "ica"], "--basis"),
        (["build", "CHECKPOINT", "--out", "OUT", "--edge-points", "0"], "--edge-points cannot be 0"),
        (["build", "CHECKPOINT", "--out", "OUT", "--edge-sources", "0"], "--edge-sources cannot be 0"),
        (
            ["build", "CHECKPOINT"],
            "--out is required (folder to write the run to); see interbasis build --help",
        ),
        (["build", "CHECKPOINT", "--out"], "--out requires a value"),
        (["show"], "RUN is required (folder of a run"),
        (["build", "modadd:", "--out", "OUT"], "expected a model as modadd:PATH"),
        (["show", "OUT"], "is not a folder"),
        (["shwo", "OUT"], "shwo"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(
    cli: Cli, small_addition: Path, tmp_path: Path, arguments: list[str], message: str
) -> None:
    places = {"OUT": str(tmp_path / "run"), "CHECKPOINT": f"modadd:{small_addition}"}
    code, out, err = cli(*(places.get(argument, argument) for argument in arguments))
    assert code == 2
    assert out == ""
    assert message in err
    assert "Traceback" not in err
    assert not (tmp_path / "run").exists()


def test_checkpoints_that_are_none_are_refused(cli: Cli, tmp_path: Path) -> None:
    text = tmp_path / "text.safetensors"
    text.write_text("not a checkpoint")
    code, _, err = cli("build", f"modadd:{text}", "--out", tmp_path / "run")
    assert (code, "could not read" in err) == (2, True)
    other = tmp_path / "other.safetensors"
    save_file({"weight": torch.zeros(2)}, other)
    code, _, err = cli("build", f"modadd:{other}", "--out", tmp_path / "run")
    assert (code, "embed.W_E is missing" in err) == (2, True)
    for name in ("blocks.0.attn.W_Q", "embed.W_E"):
        save_file(initial_weights(Recipe(p=11, width=16, heads=2, hidden=24)) | {name: torch.zeros(5)}, other)
        code, _, err = cli("build", f"modadd:{other}", "--out", tmp_path / "run")
        assert (code, f"{name} has shape [5]" in err) == (2, True)
    save_file(
        initial_weights(Recipe(p=11, width=16, heads=2, hidden=24)) | {"blocks.x.y": torch.zeros(5)}, other
    )
    assert cli("build", f"modadd:{other}", "--out", tmp_path / "fine").code == 0
    weights = initial_weights(Recipe(p=11, width=16, heads=2, hidden=24))
    save_file(weights | {"blocks.0.mlp.b_in": torch.zeros(7)}, other)
    code, _, err = cli("build", f"modadd:{other}", "--out", tmp_path / "run")
    assert (code, "b_in has shape [7], expected [24]" in err) == (2, True)


def test_a_run_is_not_overwritten_unless_asked(cli: Cli, small_addition: Path, tmp_path: Path) -> None:
    arguments = ["build", f"modadd:{small_addition}", "--out", tmp_path / "run"]
    assert cli(*arguments).code == 0
    code, _, err = cli(*arguments, "--basis", "pca")
    assert (code, "--overwrite" in err) == (2, True)
    assert load(tmp_path / "run").config.basis == "lib"
    assert cli(*arguments, "--basis", "pca", "--overwrite").code == 0
    assert load(tmp_path / "run").config.basis == "pca"


def test_foreign_folders_are_refused_before_the_work_begins(
    cli: Cli, small_addition: Path, tmp_path: Path
) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    code, _, err = cli("build", f"modadd:{small_addition}", "--out", tmp_path, "--overwrite")
    assert (code, "nothing was written there" in err) == (2, True)


def test_the_installed_command_and_the_lazy_surface() -> None:
    found = subprocess.run(
        [sys.executable, "-m", "interbasis", "--help"], capture_output=True, text=True, check=True
    )
    assert "build" in found.stdout
    code = "import sys, interbasis; interbasis.InterbasisError; print('torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"
    assert {"build", "open_run", "Run", "modadd", "from_torch"} <= set(dir(interbasis))
    with pytest.raises(AttributeError, match="no attribute 'biuld'"):
        interbasis.biuld  # noqa: B018


def names() -> list[str]:
    return [name for _, _, commands in command_groups() for name in commands]


def documented(package: str, name: str) -> dict[str, str]:
    """Help of a command by its name; of one with commands inside, of each of these."""
    command = getattr(importlib.import_module(f"{package}.{name}"), name)
    if not isinstance(command, App):
        return {name: inspect.getdoc(command)}
    inner = {word: command[word].default_command for word in command if not word.startswith("-")}
    return {f"{name} {word}": inspect.getdoc(function) for word, function in inner.items()}


def test_the_help_lists_every_command_in_groups_with_its_first_line(cli: Cli) -> None:
    shown = " ".join(cli("--help").out.replace("│", " ").split())
    for package, title, commands in command_groups():
        assert f"─ {title} ─" in shown
        for name in commands:
            texts = documented(package, name)
            line = texts.get(name, "").partition("\n")[0]
            if not line:
                inside = " ".join(cli(name, "--help").out.replace("│", " ").split())
                for words, text in texts.items():
                    assert f"{words.split()[1]} {text.splitlines()[0]}" in inside
                line = str(getattr(importlib.import_module(f"{package}.{name}"), name).help)
            assert f"{name} {line}" in shown
    packages = (interbasis.cli, interbasis_studies.cli)
    files = {path.stem for package in packages for path in Path(package.__file__).parent.glob("*.py")}
    assert set(names()) == files - {"__init__", "common"}


def test_quiet_prints_the_result_alone_and_verbose_where_time_and_files_went(
    cli: Cli, small_addition: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("command_line.SECONDS_BETWEEN_LINES", 0.0)
    build = ["build", f"modadd:{small_addition}", "--basis", "pca", "--out"]
    plain, quiet, verbose = (
        cli(*build, tmp_path / name, *options)
        for name, options in {"plain": (), "quiet": ("-q",), "verbose": ("--verbose",)}.items()
    )
    assert "statistics" in plain.err
    assert "wrote" not in plain.err
    assert quiet.err == ""
    assert "Node layers" in quiet.out
    assert re.search(rf"^wrote {tmp_path}/verbose/config.json \([\d,]+ bytes\)$", verbose.err, re.MULTILINE)
    assert re.search(r"^edges: [\d.]+ s$", verbose.err, re.MULTILINE)
    assert re.search(r"^[\d.]+ s, [\d.]+ s of the processor$", verbose.err, re.MULTILINE)
    assert cli("show", tmp_path / "plain").err == ""  # what was asked for once is not kept


def test_the_traceback_of_an_error_is_for_verbose(cli: Cli, tmp_path: Path) -> None:
    assert cli("show", tmp_path).err.startswith("error: ")
    told = cli("show", tmp_path, "-v").err
    assert "Traceback" in told
    assert told.splitlines()[-1] == cli("show", tmp_path).err.rstrip("\n")


def test_completion_is_installed_for_every_command_and_option(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    ended = cli("--install-completion", "--shell", "bash")
    assert ended.code == 0
    (file,) = (path for path in tmp_path.rglob("*") if path.is_file() and path.name != ".bashrc")
    assert all(name in file.read_text() for name in [*names(), "--jacobian-sources", "--quiet", "--verbose"])
    asked = f"source {file}; COMP_WORDS=(interbasis abl); COMP_CWORD=1; _interbasis; echo ${{COMPREPLY[@]}}"
    found = subprocess.run(["bash", "-c", asked], capture_output=True, text=True)
    assert (found.stdout, found.stderr) == ("ablate\n", "")


def test_ctrl_c_says_that_the_same_command_resumes(
    cli: Cli, small_addition: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("interbasis.run.named_build.build_by_name", interrupted)
    monkeypatch.setattr("interbasis.graph.store.load_identified", interrupted)
    build = cli("build", f"modadd:{small_addition}", "--out", tmp_path / "run")
    assert (build.code, build.err) == (130, "interrupted; the same command resumes\n")
    show = cli("show", tmp_path)
    assert (show.code, show.err) == (130, "interrupted\n")


def examples() -> list[str]:
    """Every command that some command's help gives as an example."""
    found = []
    texts = {
        words: text
        for package, _, group in command_groups()
        for name in group
        for words, text in documented(package, name).items()
    }
    for name, text in texts.items():
        lines = [line.strip() for line in text.splitlines()]
        text = "\n".join(lines).partition("Example:")[2].replace("Example:\n", "Example: ").strip()
        assert text.startswith(f"interbasis {name}"), name
        found += re.findall(r"interbasis (\w[^\n,]*)", text)
    return found


@pytest.mark.parametrize("example", examples())
def test_the_examples_of_the_help_are_understood(example: str) -> None:
    command, bound, _ = app.parse_args(shlex.split(example), exit_on_error=False, print_error=False)
    assert command.__name__ in example.split()[:2]
    assert bound.arguments or command.__name__ == "doctor"


def test_examples_that_are_cheap_work_and_print_one_document(
    cli: Cli, small_addition: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for basis in ("lib", "pca"):
        assert cli("build", f"modadd:{small_addition}", "--basis", basis, "--out", f"runs/{basis}").code == 0
    chosen = {"show", "curves", "modules", "features", "export", "compare", "doctor"}
    done = set()
    for example in examples():
        name, *rest = shlex.split(example)
        if name in chosen or example.startswith("build --config"):
            assert isinstance(cli(name, *(x for x in rest if x != "--network"), "--json").json, dict)
            done.add(name)
    assert done == chosen | {"build"}
    again = [next((tmp_path / "runs" / name).glob("graph-*")).name for name in ("lib", "again")]
    assert again[0] == again[1]  # named by their content: bit for bit


def test_exit_codes(small_addition: Path, tmp_path: Path) -> None:
    code = "import sys, interbasis.lib.build as p, interbasis.cli as c\n"
    code += "def fail(*a, **k): raise {}\np.build = fail\nc.main(sys.argv[1:])"
    arguments = ["build", f"modadd:{small_addition}", "--out", str(tmp_path / "run")]
    for error, expected, text in (("KeyboardInterrupt", 130, ""), ("RuntimeError('odd')", 1, "odd")):
        found = subprocess.run(
            [sys.executable, "-c", code.format(error), *arguments], capture_output=True, text=True
        )
        assert (found.returncode, found.stdout) == (expected, "")
        assert text in found.stderr
    assert not (tmp_path / "run").exists()


def test_a_reader_that_has_had_enough_is_no_traceback(small_addition: Path, tmp_path: Path) -> None:
    interbasis.build(interbasis.modadd.load(small_addition), interbasis.modadd.pairs(11).inputs).save(
        tmp_path / "r"
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "interbasis", "show", str(tmp_path / "r"), "--json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    process.stdout.close()
    with process.stderr as errors:
        assert errors.read() == b""
    assert process.wait() == 141


def test_progress_with_the_time_left_on_a_terminal_alone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from interbasis.base.progress import progress_bar

    for terminal in (False, True):
        monkeypatch.setattr(sys.stderr, "isatty", lambda terminal=terminal: terminal)
        monkeypatch.setenv("FORCE_COLOR", "1")
        with progress_bar() as advance:
            for done in (1, 2):
                advance("edges", done, 4)
        shown = capsys.readouterr()
        assert shown.out == ""
        assert ("edges" in shown.err and "2/4" in shown.err and "·" in shown.err) == terminal


def test_progress_in_a_log_file_is_a_line_every_half_minute(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from interbasis.base import progress

    seconds = iter([0.0, 10.0, 31.0, 40.0, 62.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(seconds))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: False)
    with progress.progress_bar() as advance:
        for done in (1, 2, 3, 4):
            advance("edges", 1000 * done, 4000)
    shown = capsys.readouterr()
    assert shown.out == ""
    lines = [line.split(" ", 1)[1] for line in shown.err.splitlines()]
    assert lines == ["edges: 2,000 of 4,000 (50%)", "edges: 4,000 of 4,000 (100%)"]


def test_training_shows_steps_per_second_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from interbasis_studies.cli import train

    seconds = iter([10.0, 12.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(seconds))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with train._live_line() as line:
        line(250, 1000, 2.0, 0.5)
        line(500, 1000, 1.0, 0.75)
    assert capsys.readouterr().err.endswith(
        "step 500 of 1,000 · loss 1 · test accuracy 75.00% · 125 steps/s · 4 s at most\n"
    )
