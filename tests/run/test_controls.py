"""ablate, curves, modules and controls on the command line."""

import json
import os
import re
import resource
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import interbasis
from command_line import Cli
from interbasis.analysis.ablation.evaluation import Score
from interbasis.analysis.ablation.search import edges_required, nodes_required
from interbasis.analysis.features.fourier_labels import fourier
from interbasis.analysis.features.records import FourierLabel
from interbasis.analysis.stages.ablate import AblationResult
from interbasis.analysis.stages.controls import ControlsResult
from interbasis.analysis.stages.features import FeaturesResult
from interbasis.analysis.stored_results import load_result, load_tensors
from interbasis.base.progress import Progress
from interbasis.data.batches import Batches
from interbasis.graph.interaction_graph import InteractionGraph
from interbasis.graph.layer_basis import LayerBasis
from interbasis.graph.named_models import open_data
from interbasis.graph.settings import BuildConfig
from interbasis.graph.store import load
from interbasis.lib.build import build_alone
from interbasis.network.network import Network
from interbasis_studies.training.modadd import Recipe, initial_weights
from tiny_models import random_model, tokens


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights, the output's mean taken away for answers that differ."""
    path = tmp_path_factory.mktemp("models") / "small.safetensors"
    weights = initial_weights(Recipe(seed=3, p=11, width=16, heads=2, hidden=24))
    weights = {name: w * (3 if "W_" in name else 1) for name, w in weights.items()}
    save_file(weights, path)
    logits = interbasis.modadd.load(path)(interbasis.modadd.pairs(11).inputs)
    weights["unembed.b_U"] = -logits.mean(0)
    save_file(weights, path)
    return path


@pytest.fixture(scope="module")
def language_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random language model, with tokens to train and to test it on."""
    folder = tmp_path_factory.mktemp("language")
    random_model("gpt2").save_pretrained(folder / "model")
    for name, seed in (("train", 1), ("test", 2)):
        tokens(40, 8, seed=seed).numpy().astype("uint16").tofile(folder / f"tokens_{name}.uint16")
    return folder


def counts(result: dict[str, Any], kind: str = "sections") -> dict[str, int | None]:
    """Edges or nodes required, by name."""
    return {name: row["count"] for name, row in result[kind].items()}


@pytest.fixture
def folder(cli: Cli, checkpoint: Path, tmp_path: Path) -> Path:
    assert cli("build", f"modadd:{checkpoint}", "--out", tmp_path / "run").code == 0
    return tmp_path / "run"


def test_ablate_gives_sections_by_name_in_their_order_and_stores_them(cli: Cli, folder: Path) -> None:
    code, out, err = cli("ablate", folder, "--edges", "--nodes", "--tolerance", 0.02, "--json")
    assert (code, err) == (0, "")
    result = json.loads(out)
    graph = load(folder)
    network = interbasis.modadd.load(graph.provenance.model.partition(":")[2])
    test = interbasis.modadd.split(p=11)[1]
    required = edges_required(network, graph, test, tolerance=0.02)
    assert counts(result) == {row.source: row.count for row in required}
    assert list(result["sections"]) == graph.section_names
    nodes = nodes_required(network, graph, test, tolerance=0.02)
    assert counts(result, "layers") == {row.layer: row.count for row in nodes}
    for row in required:
        assert result["sections"][row.source]["stable_count"] == row.stable_count
    stored = load_result(folder, AblationResult)
    assert json.loads(stored.model_dump_json()) | {"run": str(folder)} == result
    masks = load_tensors(folder, AblationResult)
    assert all(torch.equal(masks[f"edge_mask.{row.source}"], row.mask) for row in required)
    assert not (folder / ".resume").exists()


def test_nodes_alone(cli: Cli, folder: Path) -> None:
    result = cli("ablate", folder, "--nodes", "--tolerance", 0.02, "--json").json
    assert result["sections"] == {}
    assert len(result["layers"]) == 3
    both = cli("ablate", folder, "--tolerance", 0.02, "--json").json
    assert both["layers"] == result["layers"]  # what was found before stays
    assert len(both["sections"]) == 3


def test_parts_of_an_ablation_come_together(cli: Cli, folder: Path) -> None:
    whole = cli("ablate", folder, "--tolerance", 0.02, "--json").json
    (folder / "ablation.json").unlink()
    first = cli("ablate", folder, "--tolerance", 0.02, "--sections", "mlp_in.0", "--json").json
    assert first["sections"] == {"mlp_in.0": whole["sections"]["mlp_in.0"]}
    rest = cli("ablate", folder, "--tolerance", 0.02, "--sections", "attn_in.0,unembed", "--json").out
    assert json.loads(rest)["sections"] == whole["sections"]
    assert list(json.loads(rest)["sections"]) == list(whole["sections"])
    other = cli("ablate", folder, "--tolerance", 0.5, "--sections", "unembed", "--json").json
    assert list(other["sections"]) == ["unembed"]  # other settings, another result


def test_parts_of_an_ablation_are_told_of_their_own_section(
    cli: Cli, folder: Path, checkpoint: Path, tmp_path: Path
) -> None:
    """`compare`, `modules` and the report look sections up by name."""
    from interbasis.show.report.record import read_runs

    assert cli("build", f"modadd:{checkpoint}", "--basis", "pca", "--out", tmp_path / "pca").code == 0
    part = ("--tolerance", 0.02, "--json", "--sections")
    (count,) = counts(cli("ablate", folder, *part, "mlp_in.0").json).values()
    (other,) = counts(cli("ablate", tmp_path / "pca", *part, "unembed").json).values()
    compared = cli("compare", folder, tmp_path / "pca", "--json").json
    assert {name: row["edges_required"] for name, row in compared["sections"].items()} == {
        "attn_in.0": [None, None], "mlp_in.0": [count, None], "unembed": [None, other],
    }  # fmt: skip
    assert all(row["nodes_required"] == [None, None] for row in compared["layers"].values())
    modules = cli("modules", folder, "--null-graphs", 0, "--json").json
    assert modules["epsilons_from_ablation"] is False
    (reported,) = read_runs([folder])
    assert reported.edges_required == {
        "attn_in.0 → mlp_in.0": None, "mlp_in.0 → unembed": count, "unembed → output": None,
    }  # fmt: skip


def test_no_edge_required_is_told_as_such(cli: Cli, folder: Path) -> None:
    """With a tolerance of 1 everything passes, without any edge, too."""
    result = cli("ablate", folder, "--tolerance", 1, "--intervals", "--json").json
    assert [row["count"] for row in result["sections"].values()] == [0, 0, 0]
    assert [row["interval"] for row in result["sections"].values()] == [[0, 0]] * 3
    assert not any(
        mask[:, 1:].any() for name, mask in load_tensors(folder, AblationResult).items() if "mask" in name
    )
    compared = cli("compare", folder, folder, "--json").json
    assert [row["edges_required"] for row in compared["sections"].values()] == [[0, 0]] * 3
    code, _, err = cli("modules", folder)
    assert code != 0
    assert "nothing to group" in err


def test_results_name_the_file_that_was_evaluated(cli: Cli, language_model: Path, tmp_path: Path) -> None:
    """The run was built on the training tokens; ablation and curves are about the file beside them."""
    from interbasis.show.report.record import read_runs
    from interbasis.show.report.tables import provenance

    model, data = f"hf:{language_model}/model", f"tokens:{language_model}/tokens_train.uint16,context=8"
    built = ("--data", data, "--layers", "mlp_in.1,ln_final,ln_final_out,unembed")
    assert cli("build", model, *built, "--out", tmp_path / "run").code == 0
    test = f"tokens:{language_model}/tokens_test.uint16,context=8"
    for command in (("ablate", "--tolerance", 9, "--no-stable"), ("curves",)):
        name, *options = command
        code, out, err = cli(name, tmp_path / "run", *options, "--json")
        assert (code, err) == (0, "")
        told = json.loads(out)["data"]
        assert told["spec"] == f"tokens:{os.path.relpath(language_model)}/tokens_test.uint16,context=8"
        again = cli(name, tmp_path / "run", *options, "--data", test, "--json").json["data"]
        assert again == told
    assert told["fingerprint"] == Batches(open_data(test, "test")).fingerprint()
    assert told["fingerprint"] != load(tmp_path / "run").provenance.data_fingerprints["data"]
    assert f"{told['spec']}: {told['samples']} samples" in provenance(read_runs([tmp_path / "run"])).to_html()


def test_an_interrupted_ablation_goes_on(cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from interbasis.analysis.ablation.evaluation import Evaluation

    monkeypatch.setenv("INTERBASIS_SAVE_EVERY", "0")
    whole = cli("ablate", folder, "--tolerance", 0.02, "--json").json
    (folder / "ablation.json").unlink()
    original, calls = Evaluation.edges, []

    def counted(self: Evaluation, masks: Any, limit: float | None = None) -> Score:
        calls.append(1)
        if len(calls) == 9:
            raise KeyboardInterrupt
        return original(self, masks, limit)

    monkeypatch.setattr(Evaluation, "edges", counted)
    assert cli("ablate", folder, "--tolerance", 0.02).code == 130
    assert (folder / ".resume").exists()
    assert not (folder / "ablation.json").exists()
    code, _, err = cli("ablate", folder, "--tolerance", 0.03)
    assert code == 2
    assert "begun with tolerance = 0.02, not 0.03" in err
    again = cli("ablate", folder, "--tolerance", 0.02, "--json")
    assert json.loads(again.out) == whole
    assert re.fullmatch(r"resuming ablation: edges from \S+, \d+ steps\n", again.err)


def test_interrupted_curves_go_on_at_the_fraction_they_were_at(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from interbasis.analysis.ablation import robust
    from interbasis.analysis.ablation.evaluation import Evaluation
    from interbasis.analysis.ablation.robust import RobustSearch

    monkeypatch.setenv("INTERBASIS_SAVE_EVERY", "0")
    monkeypatch.setattr(robust, "Attack", partial(robust.Attack, steps=1, starts=1, samples=8))
    whole = cli("curves", folder, "--robust", "--json").json
    (folder / "curves.json").unlink()
    calls = []

    def interrupted(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            calls.append(original.__name__)
            if len(calls) in (15, 60):  # within the second curve, and among the attacks
                raise KeyboardInterrupt
            return original(*arguments)

        return call

    monkeypatch.setattr(Evaluation, "edges", interrupted(Evaluation.edges))
    monkeypatch.setattr(RobustSearch, "worst_common", interrupted(RobustSearch.worst_common))
    assert cli("curves", folder, "--robust").code == 130
    ended = cli("curves", folder, "--robust")
    assert (ended.code, ended.err.splitlines()[0]) == (130, "resuming curves: curve 1, 3 of 11")
    assert calls.count("edges") >= 4 * 11 + 1  # every point once, and the one that was interrupted
    again = cli("curves", folder, "--robust", "--json")
    assert json.loads(again.out) == whole
    assert re.fullmatch(r"resuming curves: worst \d, \d of \d+\n", again.err)
    assert not (folder / ".resume").exists()


def test_a_tolerance_below_one_sample_is_pointed_out(cli: Cli, folder: Path) -> None:
    arguments = ["ablate", folder, "--nodes", "--data", "modadd,p=11,samples=50", "--json"]
    ended = cli(*arguments, "--tolerance", 0.01)
    assert ended.code == 0
    assert ended.err.startswith("warning: a tolerance of 0.01 ")
    assert ended.err.count("\n") == 1
    assert [word for word in ended.err.split() if word.strip(",;").isdigit()] == ["50", "100"]
    assert ended.err.endswith("a tolerance of 0.02\n")
    assert cli(*arguments, "--tolerance", 0.02).err == ""


def test_tables_for_people(cli: Cli, folder: Path) -> None:
    for command, words in (
        (["ablate", "--edges", "--nodes", "--tolerance", "0.02"], ["Edges required", "Nodes required"]),
        (["curves"], ["largest edges kept", "all sections", "Gini"]),
        (["modules", "--null-graphs", "5", "--cross-check"], ["modularity", "leidenalg", "Vertex cuts"]),
    ):
        code, out, err = cli(command[0], folder, *command[1:])
        assert (code, err) == (0, "")
        assert all(word in out for word in words), out


def test_modules_take_the_smallest_edges_needed(cli: Cli, folder: Path) -> None:
    before = cli("modules", folder, "--null-graphs", 0, "--json").json
    assert before["epsilons_from_ablation"] is False
    ablation = cli("ablate", folder, "--tolerance", 0.02, "--json").json
    after = cli("modules", folder, "--null-graphs", 0, "--json").json
    assert after["epsilons_from_ablation"] is True
    assert after["epsilons"] == {name: row["epsilon"] for name, row in ablation["sections"].items()}
    sizes = {layer.name: layer.features for layer in load(folder).layers}
    assert {name: len(assignment) for name, assignment in after["layers"].items()} == sizes


def test_controls_are_stored(cli: Cli, folder: Path) -> None:
    code, out, err = cli("controls", folder, "--tolerance", 0.05, "--json")
    assert (code, err) == (0, "")
    rows = json.loads(out)["rows"]
    assert next(iter(rows)) == "lib"
    assert {row["network"] for row in rows.values()} == {"trained", "shuffled", "reinitialised"}
    assert json.loads(load_result(folder, ControlsResult).model_dump_json())["rows"] == rows


def test_controls_of_some_bases_and_of_several_scrambled_networks(cli: Cli, folder: Path) -> None:
    chosen = ["--bases", "pca,neuron", "--stressed", "", "--scrambles", 2, "--seed", 1, "--json"]
    code, out, err = cli("controls", folder, *chosen)
    assert (code, err) == (0, "")
    rows = json.loads(out)["rows"]
    assert all(row["stress"] == {} for row in rows.values())
    assert list(rows) == [
        "pca", "pca, edges ranked at random", "neuron", "pca, shuffled weights, seed 1",
        "pca, shuffled weights, seed 2", "pca, reinitialised weights, seed 1",
        "pca, reinitialised weights, seed 2",
    ]  # fmt: skip
    code, _, err = cli("controls", folder, "--bases", "lip")
    assert code == 2
    assert "lib, gib, jib, pca, neuron, random, received lip" in err


def test_interrupted_controls_go_on_with_the_row_they_were_at(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import interbasis.analysis.ablation.controls as evidence

    whole = cli("controls", folder, "--tolerance", 0.05, "--json").json
    (folder / "controls.json").unlink()
    original, built = build_alone, []

    def interrupted(network: Network, data: Any, config: BuildConfig, progress: Progress) -> InteractionGraph:
        built.append(config.basis)
        if len(built) == 3:
            raise KeyboardInterrupt
        return original(network, data, config, progress)

    monkeypatch.setattr(evidence, "build_alone", interrupted)
    assert cli("controls", folder, "--tolerance", 0.05).code == 130
    code, _, err = cli("controls", folder, "--tolerance", 0.05, "--seed", 1)
    assert (code, "begun with seed = 0, not 1" in err) == (2, True)
    resumed = cli("controls", folder, "--tolerance", 0.05, "--json")
    assert json.loads(resumed.out) == whole
    assert resumed.err == "resuming controls: pca\n"
    assert built == ["lib", "gib", "pca", "pca", "neuron", "random", "lib", "lib"]
    assert not (folder / ".resume").exists()


def test_interrupted_features_go_on_with_the_layer_they_were_at(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import interbasis.analysis.features.analysis as analysis

    whole = cli("features", folder, "--top", 3, "--json").out
    before = {path: path.read_bytes() for path in folder.iterdir()}
    original, calls = fourier, []

    def interrupted(network: Network, basis: LayerBasis) -> list[FourierLabel]:
        calls.append(basis.name)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return original(network, basis)

    monkeypatch.setattr(analysis, "fourier", interrupted)
    assert cli("features", folder, "--top", 3).code == 130
    code, _, err = cli("features", folder, "--top", 4)
    assert code == 2
    assert "begun with top = 3, not 4" in err
    assert ".resume/features to start again" in err
    assert cli("features", folder, "--top", 3, "--json").out == whole
    assert calls == ["attn_in.0", "mlp_in.0", "mlp_in.0", "unembed", "output"]
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize("command", [["features", "--top", "3"], ["ablate", "--tolerance", "1"]])
def test_a_full_disk_leaves_the_earlier_result_and_state(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    monkeypatch.setenv("INTERBASIS_SAVE_EVERY", "0")
    kind: Any = {"features": FeaturesResult, "ablate": AblationResult}[command[0]]
    assert cli(command[0], folder, *command[1:]).code == 0
    before = {path: path.read_bytes() for path in folder.iterdir()}
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (600, hard))
    try:
        code, out, err = cli(command[0], folder, *command[1:])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert "could not write" in err
    assert "free some space" in err
    assert {path: path.read_bytes() for path in folder.iterdir() if path.name != ".resume"} == before
    assert not list(folder.rglob("*.tmp"))
    assert cli(command[0], folder, *command[1:]).code == 0
    assert {path: path.read_bytes() for path in folder.iterdir()} == before
    assert load_result(folder, kind)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (
            ["ablate", "--tolerance", "-1"],
            "--tolerance cannot be -1: input should be greater than or equal to 0",
        ),
        (["ablate", "--sections", "mlp"], "there is no section from 'mlp'"),
        (["ablate", "--data", "nothing"], "expected data as"),
        (["modules", "--resolution", "0"], "--resolution cannot be 0: input should be greater than 0"),
    ],
)
def test_bad_requests(cli: Cli, folder: Path, arguments: list[str], reason: str) -> None:
    code, _, err = cli(arguments[0], folder, *arguments[1:])
    assert code == 2
    assert reason in " ".join(err.split())
    assert not (folder / "ablation.json").exists()


def test_a_model_that_changed_is_refused(cli: Cli, folder: Path, checkpoint: Path) -> None:
    before = checkpoint.read_bytes()
    try:
        save_file(initial_weights(Recipe(seed=4, p=11, width=16, heads=2, hidden=24)), checkpoint)
        code, _, err = cli("ablate", folder)
    finally:
        checkpoint.write_bytes(before)
    assert code == 2
    assert "the weights differ" in " ".join(err.split())
