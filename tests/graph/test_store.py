"""What a run is on disk: complete, atomic, and refused when it is not whole."""

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import interbasis
from cases import mlp, modular_addition
from interbasis import InterbasisError, build
from interbasis.base.files import file_sha256
from interbasis.graph.interaction_graph import InteractionGraph, Provenance
from interbasis.graph.store import load, save
from interbasis.network.network import Network


@pytest.fixture
def graph() -> InteractionGraph:
    case = mlp(nn.GELU())
    return build(case.network, case.inputs, edge_group=4, model="a test").graph


@pytest.fixture
def run(graph: InteractionGraph, tmp_path: Path) -> Path:
    save(graph, tmp_path / "run", signed=True)
    return tmp_path / "run"


def test_what_is_loaded_is_what_was_saved(graph: InteractionGraph, run: Path) -> None:
    loaded = load(run)
    assert loaded.config == graph.config
    assert loaded.provenance == graph.provenance
    for mine, theirs in zip(loaded.layers, graph.layers, strict=True):
        assert (mine.name, mine.constant) == (theirs.name, theirs.constant)
        assert (mine.variance_cut, mine.jacobian_cut) == (theirs.variance_cut, theirs.jacobian_cut)
        for name in ("transform", "inverse", "mean", "eigenvalues", "variances"):
            assert torch.equal(getattr(mine, name), getattr(theirs, name))
    for mine, theirs in zip(loaded.edges + loaded.edge_errors, graph.edges + graph.edge_errors, strict=True):
        assert torch.equal(mine, theirs)


def test_a_graph_without_edges_or_constant_can_be_saved_too(tmp_path: Path) -> None:
    case = modular_addition()
    graph = build(case.network, case.inputs, edge_method=None).graph
    loaded = load(graph.save(tmp_path / "deep" / "run"))
    assert loaded.edges == []
    assert [layer.constant for layer in loaded.layers] == [True, True, True, False]


def test_the_folder_holds_config_and_one_tensor_file_and_no_pickle(run: Path) -> None:
    names = sorted(path.name for path in run.iterdir())
    assert names[::2] == ["config.json", "signature.json"]
    assert len(names) == 3
    assert names[1].endswith(".safetensors")
    header = json.loads((run / "config.json").read_text())
    assert header["schema"] == 1
    assert header["config"]["basis"] == "lib"
    assert header["provenance"]["data_fingerprints"]["data"]
    assert set(header["provenance"]["timings"]) == {
        "survey",
        "statistics",
        "Jacobians",
        "bases",
        "edges",
        "fingerprints",
    }


def test_saving_again_replaces_the_run_and_leaves_other_results(
    run: Path, graph: InteractionGraph, tmp_path: Path
) -> None:
    (run / "ablation.json").write_text("{}")
    case = mlp(nn.ReLU())
    other = build(case.network, case.inputs).graph
    save(other, run, signed=True)
    assert torch.equal(load(run).edges[0], other.edges[0])
    assert (run / "ablation.json").exists()
    assert len(list(run.glob("*.safetensors"))) == 1


def test_a_crash_while_saving_leaves_the_old_run_whole(
    run: Path, graph: InteractionGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = mlp(nn.ReLU())
    other = build(case.network, case.inputs).graph
    from interbasis.graph import store as module

    def crash(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(module, "write_tensors", crash)
        with pytest.raises(InterbasisError, match=r"No space left .*untouched"):
            save(other, run, signed=True)
    with monkeypatch.context() as patch:
        patch.setattr(module, "write_text_atomically", crash)
        with pytest.raises(OSError, match="No space"):
            save(other, run, signed=True)
    assert torch.equal(load(run).edges[0], graph.edges[0])
    save(other, run, signed=True)
    assert torch.equal(load(run).edges[0], other.edges[0])
    assert len(list(run.iterdir())) == 3


def test_what_a_kill_during_the_first_save_leaves_does_not_block_the_next(
    graph: InteractionGraph, tmp_path: Path
) -> None:
    (tmp_path / ".graph.safetensors.new.abc.tmp").write_bytes(b"half")
    (tmp_path / "graph.safetensors.new").write_bytes(b"whole")
    (tmp_path / "graph-0123456789ab.safetensors").write_bytes(b"whole, but no config.json yet")
    save(graph, tmp_path, signed=True)
    assert torch.equal(load(tmp_path).edges[0], graph.edges[0])
    assert len(list(tmp_path.iterdir())) == 3


def test_other_peoples_tensors_are_not_taken_for_ours(
    run: Path, graph: InteractionGraph, tmp_path: Path
) -> None:
    (run / "graph-final.safetensors").write_bytes(b"mine")
    graph.save(run)
    assert (run / "graph-final.safetensors").exists()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "graph-final.safetensors").write_bytes(b"mine")
    with pytest.raises(InterbasisError, match="not an interbasis run"):
        graph.save(tmp_path / "other")


def test_a_run_that_is_replaced_while_it_is_read_is_read_anew(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from interbasis.graph import store as module

    case = mlp(nn.ReLU())
    other = build(case.network, case.inputs).graph
    calls: list[Any] = []
    read = module._read_tensors

    def replaced_meanwhile(*arguments: Any) -> dict[str, Tensor]:
        if not calls:
            calls.append(1)
            save(other, run, signed=True)
        return read(*arguments)

    monkeypatch.setattr(module, "_read_tensors", replaced_meanwhile)
    assert torch.equal(load(run).edges[0], other.edges[0])


def test_folders_that_hold_something_else_are_not_written_to(graph: InteractionGraph, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(InterbasisError, match=r"not empty and not .* run"):
        graph.save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    with pytest.raises(InterbasisError, match="is a file"):
        graph.save(tmp_path / "thesis.tex")


def truncate(run: Path) -> None:
    file = next(run.glob("*.safetensors"))
    file.write_bytes(file.read_bytes()[:-100])


def remove_tensors(run: Path) -> None:
    next(run.glob("*.safetensors")).unlink()


def edit(**changes: Any) -> Callable[..., Any]:
    def apply(run: Path) -> None:
        header = json.loads((run / "config.json").read_text())
        (run / "config.json").write_text(json.dumps(header | changes))

    return apply


def poison(run: Path) -> None:
    file = next(run.glob("*.safetensors"))
    tensors = load_file(file)
    tensors["edges.0"][1, 1] = torch.nan
    save_file(tensors, file)
    edit(tensors={"file": file.name, "sha256": file_sha256(file)})(run)


def shrink(run: Path) -> None:
    file = next(run.glob("*.safetensors"))
    tensors = load_file(file)
    tensors["edges.0"] = tensors["edges.0"][:-1].clone()
    save_file(tensors, file)
    edit(tensors={"file": file.name, "sha256": file_sha256(file)})(run)


def cut_config(run: Path) -> None:
    text = (run / "config.json").read_text()
    (run / "config.json").write_text(text[: len(text) // 2])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (truncate, "truncated or changed"),
        (remove_tensors, "is missing"),
        (cut_config, "not readable JSON"),
        (poison, r"edges\.0 holds NaN"),
        (shrink, r"edges\.0 has shape"),
        (edit(format="somebody-elses"), "not an interbasis run"),
        (edit(schema=2), "schema 2, this version reads 1 to 1; upgrade"),
        (edit(schema=-3), "schema -3"),
        (edit(layers=[]), "0 layers do not go with 3 sections"),
        (edit(edges=1), "4 layers do not go with 1 sections"),
        (edit(provenance={}), "damaged"),
        (edit(provenance="x"), "damaged"),
        (edit(layers=[{"name": 3, "constant": True, "variance_cut": None, "jacobian_cut": None}]), "damaged"),
        (
            edit(
                layers=[
                    {"name": "x", "constant": True, "variance_cut": {"kept": "many"}, "jacobian_cut": None}
                ]
            ),
            "damaged",
        ),
        (edit(schema="x"), "schema 'x'"),
        (edit(tensors={"file": "../../etc/passwd", "sha256": ""}), "not a tensor file of a run"),
        (edit(tensors=None), "tensors: input should be a valid dictionary"),
        (edit(layers=[{"name": "linear.0"}]), "damaged"),
        (
            edit(config={"basis": "lib", "colour": "red"}),
            r"config\.colour: extra inputs are not permitted, received 'red'",
        ),
    ],
)
def test_damaged_runs_are_refused(run: Path, damage: Callable[..., Any], message: str) -> None:
    damage(run)
    with pytest.raises(InterbasisError, match=message):
        load(run)


def test_folders_that_are_no_runs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InterbasisError, match="is not a folder"):
        load(tmp_path / "nothing")
    with pytest.raises(InterbasisError, match=r"has no config\.json"):
        load(tmp_path)
    (tmp_path / "config.json").write_text("[1, 2]")
    with pytest.raises(InterbasisError, match="not an interbasis run"):
        load(tmp_path)


def test_folders_one_may_not_use_are_refused(
    graph: InteractionGraph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    def forbidden(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(tempfile, "mkdtemp", forbidden)
        with pytest.raises(InterbasisError, match=r"write.*Permission denied.*untouched"):
            graph.save(tmp_path / "run")
    with pytest.raises(InterbasisError, match="File name too long"):
        graph.save(tmp_path / ("x" * 300))
    with pytest.raises(InterbasisError, match="File name too long"):
        load(tmp_path / ("x" * 300))
    graph.save(tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr("interbasis.graph.store.file_sha256", forbidden)
        with pytest.raises(InterbasisError, match=r"could not read.*Permission denied"):
            load(tmp_path / "run")


def test_graphs_with_nan_are_not_saved(graph: InteractionGraph, tmp_path: Path) -> None:
    graph.edges[0][0, 0] = torch.nan
    with pytest.raises(InterbasisError, match=r"edges\.0 holds NaN.*not saved"):
        graph.save(tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"basis": "ica"}, "setting basis cannot be 'ica'"),
        ({"threshold": -1}, "setting threshold cannot be -1"),
        ({"edge_points": 0}, "setting edge_points cannot be 0"),
        ({"edge_method": "midpoint"}, "setting edge_method cannot be 'midpoint'"),
        ({"basis": torch.randn(99)}, "^the setting basis cannot be what was given, of type Tensor: .{,120}$"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], message: str) -> None:
    case = mlp(nn.GELU())
    with pytest.raises(InterbasisError, match=message):
        build(case.network, case.inputs, **settings)


def test_progress_is_told_to_whoever_asks() -> None:
    told = []
    case = modular_addition()
    build(case.network, case.inputs, progress=lambda *what: told.append(what))
    phases = ["survey", "statistics", "Jacobian at attn_in.0", "edges"]
    assert list(dict.fromkeys(phase for phase, _, _ in told)) == phases
    for phase in phases[1:]:
        done = [step for name, step, total in told if name == phase and total == 20]
        assert done == sorted(done)
        assert done[-1] == 20


def test_modules_must_be_made_networks_first() -> None:
    with pytest.raises(InterbasisError, match="from_torch"):
        build(nn.Linear(2, 3), torch.zeros(4, 2))  # type: ignore[arg-type]


def test_the_same_model_has_the_same_fingerprint_in_any_dtype() -> None:
    network = mlp(nn.GELU()).network.to(torch.float32)
    assert network.fingerprint() == network.double().fingerprint()
    assert network.fingerprint() != mlp(nn.ReLU()).network.fingerprint()


@pytest.mark.parametrize("where", ["layer norm", "slope", "prefix", "head"])
def test_every_weight_counts_for_the_fingerprint(where: str) -> None:
    def network(value: float) -> Network:
        torch.manual_seed(0)
        norm, slope = nn.LayerNorm(5), nn.PReLU()
        first = nn.Linear(4, 4)
        module = nn.Sequential(nn.Flatten(), first, slope, nn.Linear(4, 5), norm, nn.Linear(5, 2))
        changed = {
            "layer norm": norm.weight,
            "slope": slope.weight,
            "head": first.weight,
            "prefix": first.weight,
        }
        changed[where].data.mul_(value)
        if where == "prefix":
            module = nn.Sequential(nn.BatchNorm1d(4), *module)
            module[0].running_mean.add_(value)
        result = interbasis.from_torch(module, general=True)
        return result.between(["linear.1", "linear.2"]) if where == "head" else result

    assert network(1).fingerprint() == network(1).fingerprint() != network(2).fingerprint()


@pytest.mark.parametrize(("family", "language"), [("mlp", False), ("modadd", False), ("gpt2", True)])
def test_runs_that_say_the_family_alone_are_language_models_or_not(
    graph: InteractionGraph, family: str, language: bool
) -> None:
    stored = graph.provenance.model_dump()
    assert stored.pop("predicts_next") is False
    assert Provenance(**stored | {"family": family}).predicts_next is language
