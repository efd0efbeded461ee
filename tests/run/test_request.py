"""Runs that say how to build them again, configs in files, and runs beside each other."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import interbasis
from cases import CASES
from command_line import Cli
from interbasis import InterbasisError
from interbasis.analysis.compare import compare
from interbasis.analysis.stages.ablate import AblationResult
from interbasis.analysis.stored_results import load_result
from interbasis.graph.settings import BuildConfig
from interbasis.graph.store import load
from interbasis.run.request import make_request, requested
from interbasis.show.result_tables import comparison_tables


@pytest.fixture
def model(small_addition: Path) -> str:
    return f"modadd:{small_addition}"


def tensors(run: Path) -> dict[str, torch.Tensor]:
    return load_file(next(run.glob("graph-*.safetensors")))


def equal(one: Path, other: Path) -> bool:
    a, b = tensors(one), tensors(other)
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.fixture
def build(cli: Cli) -> Callable[..., Any]:
    """Build a run by the command; what it printed."""
    return lambda out, *arguments: cli("build", *arguments, "--out", out, "--json").json


def test_a_run_builds_itself_again_bit_for_bit(model: str, tmp_path: Path, build: Callable[..., Any]) -> None:
    options = [
        "--basis",
        "random",
        "--seed",
        "7",
        "--edge-group",
        "4",
        "--edge-data",
        "modadd,p=11,samples=20",
    ]
    build(tmp_path / "one", model, *options, "--layers", "mlp_in.0,unembed,output")
    build(tmp_path / "two", "--config", str(tmp_path / "one"))
    assert equal(tmp_path / "one", tmp_path / "two")
    one, two = (load(tmp_path / name) for name in ("one", "two"))
    assert one.provenance.request == two.provenance.request
    assert one.provenance.request.data == "modadd,p=11"
    assert one.provenance.request.threads == torch.get_num_threads()
    assert (
        one.provenance.request.settings.model_copy(update={"dtype": "float64", "norm_limit": 0}) == one.config
    )
    assert one.provenance.samples == {"data": 36, "jacobian_data": 36, "edge_data": 20}
    build(tmp_path / "three", "--config", str(tmp_path / "one/config.json"), "--seed", "8")
    assert not equal(tmp_path / "one", tmp_path / "three")


@pytest.mark.parametrize("form", ["toml", "yaml", "json"])
def test_configs_in_every_form(model: str, tmp_path: Path, form: str, build: Callable[..., Any]) -> None:
    if form == "yaml":
        pytest.importorskip("yaml")
    values = {"model": model, "basis": "pca", "edge_method": "exact", "rotate_last": True}
    lines = {"toml": "{} = {}", "yaml": "{}: {}"}
    text = "\n".join(lines.get(form, "").format(key, json.dumps(value)) for key, value in values.items())
    path = tmp_path / f"config.{form}"
    path.write_text(json.dumps(values) if form == "json" else text)
    assert requested({}, path).model_dump(include=set(values)) == values
    build(tmp_path / "file", "--config", str(path))
    build(tmp_path / "options", model, "--basis", "pca", "--edge-method", "exact", "--rotate-last")
    assert equal(tmp_path / "file", tmp_path / "options")
    build(tmp_path / "none", "--config", str(path), "--edge-method", "none")
    assert load(tmp_path / "none").edges == []


def test_a_run_remembers_how_many_samples_of_tokens_it_saw(tmp_path: Path) -> None:
    import numpy as np

    from interbasis.graph.named_models import open_data

    np.arange(400, dtype=np.uint16).tofile(tmp_path / "t.uint16")
    data = open_data(f"tokens:{tmp_path}/t.uint16,context=8,part=all,samples=5")
    again = open_data(data.spec)
    assert data.spec.endswith(",samples=5")
    assert (len(again), again.spec) == (5, data.spec)
    assert torch.equal(again.all()[0], data.all()[0])


def test_what_is_done_to_a_run_later_sees_as_many_samples(
    model: str, tmp_path: Path, build: Callable[..., Any]
) -> None:
    from interbasis.run.run import open_run

    build(tmp_path / "few", model, "--data", "modadd,p=11,samples=20")
    opened: Any = open_run(tmp_path / "few")
    assert [len(opened.data(None, split)) for split in ("train", "test")] == [20, 20]
    assert opened.data().spec == "modadd,p=11,samples=20"
    build(tmp_path / "most", model, "--data", "modadd,p=11,samples=36")
    opened = open_run(tmp_path / "most")
    assert len(opened.data("modadd,p=11,samples=7")) == 7


def test_a_run_of_an_older_version_counts_all_tokens_again(
    model: str, tmp_path: Path, build: Callable[..., Any]
) -> None:
    build(tmp_path / "run", model)
    assert requested({}, tmp_path / "run").norm_limit is None  # the default of this version
    path = tmp_path / "run" / "config.json"
    header = json.loads(path.read_text())
    del header["provenance"]["request"]["norm_limit"]
    path.write_text(json.dumps(header))
    assert requested({}, tmp_path / "run").norm_limit == 0


def test_requests_are_frozen_and_know_their_keys() -> None:
    request: Any = make_request({"model": "modadd"})
    assert request.settings == BuildConfig()
    with pytest.raises(ValueError, match="frozen"):
        request.basis = "pca"
    with pytest.raises(InterbasisError, match="there is no setting 'colour'"):
        make_request({"model": "modadd", "colour": "red"})


def test_the_same_command_again_finds_its_run_and_leaves_it(
    model: str, tmp_path: Path, build: Callable[..., Any]
) -> None:
    first = build(tmp_path / "run", model)
    stamps = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").iterdir()}
    (tmp_path / "run/.resume/build").mkdir(parents=True)  # as after a kill at the very end
    (tmp_path / "run/.resume/build/settings.json").write_text("{}")
    (tmp_path / "run/.config.json.abc.tmp").write_text("{")
    assert build(tmp_path / "run", model) == first
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "run").iterdir()} == stamps


def test_two_runs_beside_each_other(model: str, tmp_path: Path, build: Callable[..., Any], cli: Cli) -> None:
    for basis in ("lib", "pca"):
        build(tmp_path / basis, model, "--basis", basis)
    options = ("--edges", "--nodes", "--metric", "cross_entropy", "--tolerance", 1e-6)
    assert cli("ablate", tmp_path / "pca", *options).code == 0
    required = load_result(tmp_path / "pca", AblationResult)
    assert required.counts["attn_in.0"] > 0
    modules = cli("modules", tmp_path / "lib", "--null-graphs", 0, "--json").json
    compared = compare(tmp_path / "lib", tmp_path / "pca")
    graphs = [load(tmp_path / basis) for basis in ("lib", "pca")]
    assert compared.different_settings == {"basis": ("lib", "pca")}
    assert compared.same_data
    features = tuple(row.features for row in compared.layers["mlp_in.0"].summaries)
    assert features == tuple(graph.layers[1].features for graph in graphs)
    assert {name: row.edges_required for name, row in compared.sections.items()} == {
        name: (None, count) for name, count in required.counts.items()
    }
    assert {name: row.nodes_required[1] for name, row in compared.layers.items()} == {
        name: row.count for name, row in required.layers.items()
    } | {"output": None}
    assert [run.modules for run in compared.runs] == [len(modules["sizes"]), None]
    assert compared.runs[0].modularity == modules["modularity"]
    assert compared.same_model
    assert all(0 < layer.match.overlap <= 1 + 1e-9 for layer in compared.layers.values())
    assert compared.runs[1].baseline == required.baseline
    assert len(comparison_tables(compared)) == 5
    printed = cli("compare", tmp_path / "lib", tmp_path / "pca", "--json").json
    assert printed == json.loads(compared.model_dump_json())
    measured = cli("compare", tmp_path / "lib", tmp_path / "pca", "--data", "modadd,p=11", "--json").json
    assert measured["matched_by"] == "measured correlation"
    for name, layer in compared.layers.items():  # the runs were built on these data
        assert measured["layers"][name]["match"]["mean"] == pytest.approx(layer.match.mean, abs=1e-6)
    build(tmp_path / "fewer", model, "--layers", "mlp_in.0,unembed,output")
    with pytest.raises(InterbasisError, match="different"):
        compare(tmp_path / "lib", tmp_path / "fewer")


def test_models_from_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, build: Callable[..., Any]
) -> None:
    (tmp_path / "own_models.py").write_text(
        "import torch, interbasis\nfrom torch import nn\n"
        "def module():\n    torch.manual_seed(0)\n"
        "    return nn.Sequential(nn.Linear(3, 5), nn.GELU(), nn.Linear(5, 2)).double()\n"
        "def network():\n    return interbasis.from_torch(module())\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    import numpy as np

    np.savez("rows.npz", x=np.random.default_rng(0).normal(size=(40, 3)))
    for function in ("module", "network"):
        build(tmp_path / function, f"python:own_models:{function}", "--data", "npz:rows.npz")
    assert equal(tmp_path / "module", tmp_path / "network")


def test_training_from_the_command_line(tmp_path: Path, cli: Cli) -> None:
    found = cli(
        "train", "modadd", "--seed", 5, "--steps", 3, "--out", tmp_path / "m.safetensors", "--json"
    ).json
    assert (found["seed"], found["recipe"]["steps_taken"]) == (5, 3)
    assert interbasis.modadd.load(found["checkpoint"]).layers[0] == "attn_in.0"


def test_doctor_contacts_nobody_unless_asked(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    monkeypatch.setattr(socket, "create_connection", lambda *a, **k: pytest.fail("it was not asked to"))
    report = cli("doctor", "--json").json
    assert report["torch"] == torch.__version__
    assert report["packages"].keys() >= {"transformers", "leidenalg", "pyarrow"}
    assert report["network"] is None
    assert "add --network" in cli("doctor").out

    def unreachable(*arguments: Any, **options: Any) -> None:
        raise OSError

    monkeypatch.setattr(socket, "create_connection", unreachable)
    assert set(cli("doctor", "--network", "--json").json["network"].values()) == {False}


def test_counts_of_different_ablations_are_not_compared(
    model: str, tmp_path: Path, build: Callable[..., Any], cli: Cli
) -> None:
    for basis in ("lib", "pca"):
        build(tmp_path / basis, model, "--basis", basis)
    alike = ("--metric", "cross_entropy", "--tolerance", 1e-3, "--sections", "mlp_in.0")
    for basis in ("lib", "pca"):
        assert cli("ablate", tmp_path / basis, *alike).code == 0
    compared = compare(tmp_path / "lib", tmp_path / "pca")
    assert compared.not_compared is None
    assert None not in compared.sections["mlp_in.0"].edges_required
    changed = ("--metric", "cross_entropy", "--tolerance", 1e-2, "--sections", "mlp_in.0")
    assert cli("ablate", tmp_path / "pca", *changed).code == 0
    compared = compare(tmp_path / "lib", tmp_path / "pca")
    assert compared.sections["mlp_in.0"].edges_required == (None, None)
    assert "tolerance 0.001 / 0.01" in compared.not_compared
    printed = cli("compare", tmp_path / "lib", tmp_path / "pca")
    assert "ablated differently" in " ".join(printed.out.split())


def test_counts_on_other_labels_are_not_joined(tmp_path: Path) -> None:
    case = CASES["relu"]()
    interbasis.build(case.network, case.inputs, progress=False).save(tmp_path / "run")
    answers = case.network(case.inputs).argmax(-1)
    names = load(tmp_path / "run").section_names
    for labels, name in ((answers, names[0]), (answers ^ 1, names[-1])):
        opened = interbasis.open_run(tmp_path / "run", case.network, (case.inputs, labels), progress=False)
        found = opened.ablate(sections=(name,), tolerance=0.1)
        assert list(found.sections) == [name]
