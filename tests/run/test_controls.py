"""ablate, curves, modules and controls on the command line."""

import json
import resource

import pytest
import torch
from safetensors.torch import save_file

import interbasis
from interbasis.cli import main
from interbasis.data.batches import Batches
from interbasis.report.facts import facts
from interbasis.report.tables import what_was_run
from interbasis.run.results import load_result, load_tensors
from interbasis.run.specs import open_data
from interbasis.training.modadd import Recipe, initial_weights
from tiny_models import random_model, tokens


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """Random weights, the output's mean taken away for answers that differ."""
    path = tmp_path_factory.mktemp("models") / "small.safetensors"
    weights = initial_weights(Recipe(seed=3, p=11, width=16, heads=2, hidden=24))
    weights = {name: w * (3 if "W_" in name else 1) for name, w in weights.items()}
    save_file(weights, path)
    logits = interbasis.modadd.load(path)(interbasis.modadd.pairs(11).inputs)
    weights["unembed.b_U"] = -logits.mean(0)
    save_file(weights, path)
    return path


def run(capsys, *arguments: object) -> tuple[int, str, str]:
    capsys.readouterr()
    code = 0
    try:
        main([str(argument) for argument in arguments])
    except SystemExit as stop:
        code = int(stop.code or 0)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.fixture(scope="module")
def language_model(tmp_path_factory):
    """A small random language model, with tokens to train and to test it on."""
    folder = tmp_path_factory.mktemp("language")
    random_model("gpt2").save_pretrained(folder / "model")
    for name, seed in (("train", 1), ("test", 2)):
        tokens(40, 8, seed=seed).numpy().astype("uint16").tofile(folder / f"tokens_{name}.uint16")
    return folder


@pytest.fixture
def folder(capsys, checkpoint, tmp_path):
    assert run(capsys, "build", f"modadd:{checkpoint}", "--out", tmp_path / "run")[0] == 0
    return tmp_path / "run"


def test_ablate_gives_a_list_in_section_order_and_stores_it(capsys, folder):
    code, out, err = run(capsys, "ablate", folder, "--edges", "--nodes", "--tolerance", 0.02, "--json")
    assert (code, err) == (0, "")
    result = json.loads(out)
    graph = interbasis.load(folder)
    network = interbasis.modadd.load(graph.provenance.model.partition(":")[2])
    test = interbasis.modadd.split(p=11)[1]
    found = interbasis.edges_required(network, graph, test, tolerance=0.02)
    assert result["edges_required"] == [row.count for row in found]
    assert result["nodes_required"] == [
        row.count for row in interbasis.nodes_required(network, graph, test, tolerance=0.02)
    ]
    assert [row["stable_count"] for row in result["sections"]] == [row.stable_count for row in found]
    assert load_result(folder, "ablation") == {key: value for key, value in result.items() if key != "run"}
    masks = load_tensors(folder, "ablation")
    assert all(torch.equal(masks[f"edge_mask.{k}"], row.mask) for k, row in enumerate(found))
    assert not (folder / ".resume").exists()


def test_nodes_alone(capsys, folder):
    result = json.loads(run(capsys, "ablate", folder, "--nodes", "--tolerance", 0.02, "--json")[1])
    assert result["edges_required"] == []
    assert len(result["nodes_required"]) == 3
    both = json.loads(run(capsys, "ablate", folder, "--tolerance", 0.02, "--json")[1])
    assert both["nodes_required"] == result["nodes_required"]  # what was found before stays
    assert len(both["edges_required"]) == 3


def test_parts_of_an_ablation_come_together(capsys, folder):
    whole = json.loads(run(capsys, "ablate", folder, "--tolerance", 0.02, "--json")[1])
    (folder / "ablation.json").unlink()
    first = json.loads(
        run(capsys, "ablate", folder, "--tolerance", 0.02, "--sections", "mlp_in.0", "--json")[1]
    )
    assert first["edges_required"] == whole["edges_required"][1:2]
    rest = run(capsys, "ablate", folder, "--tolerance", 0.02, "--sections", "attn_in.0,unembed", "--json")[1]
    assert json.loads(rest)["edges_required"] == whole["edges_required"]
    other = json.loads(
        run(capsys, "ablate", folder, "--tolerance", 0.5, "--sections", "unembed", "--json")[1]
    )
    assert len(other["edges_required"]) == 1  # other settings, another result


def test_parts_of_an_ablation_are_told_of_their_own_section(capsys, folder, checkpoint, tmp_path):
    """`compare`, `modules` and the report look sections up by name."""
    assert run(capsys, "build", f"modadd:{checkpoint}", "--basis", "pca", "--out", tmp_path / "pca")[0] == 0
    part = ("--tolerance", 0.02, "--json", "--sections")
    (count,) = json.loads(run(capsys, "ablate", folder, *part, "mlp_in.0")[1])["edges_required"]
    (other,) = json.loads(run(capsys, "ablate", tmp_path / "pca", *part, "unembed")[1])["edges_required"]
    compared = json.loads(run(capsys, "compare", folder, tmp_path / "pca", "--json")[1])
    assert [row["from"] for row in compared["sections"]] == ["attn_in.0", "mlp_in.0", "unembed"]
    assert [row.get("edges_required") for row in compared["sections"]] == [
        None, [count, None], [None, other],
    ]  # fmt: skip
    assert all("nodes_required" not in row for row in compared["layers"])
    modules = json.loads(run(capsys, "modules", folder, "--null-graphs", 0, "--json")[1])
    assert modules["epsilon_from_ablation"] is False
    assert facts(folder).edges_required == [None, count, None]


def test_no_edge_required_is_told_as_such(capsys, folder):
    """With a tolerance of 1 everything passes, without any edge, too."""
    result = json.loads(run(capsys, "ablate", folder, "--tolerance", 1, "--intervals", "--json")[1])
    assert result["edges_required"] == [0, 0, 0]
    assert [row["interval"] for row in result["sections"]] == [[0, 0]] * 3
    assert not any(
        mask[:, 1:].any() for name, mask in load_tensors(folder, "ablation").items() if "mask" in name
    )
    compared = json.loads(run(capsys, "compare", folder, folder, "--json")[1])
    assert [row["edges_required"] for row in compared["sections"]] == [[0, 0]] * 3
    code, _, err = run(capsys, "modules", folder)
    assert code != 0
    assert "nothing to group" in err


def test_results_name_the_file_that_was_evaluated(capsys, language_model, tmp_path):
    """The run was built on the training tokens; ablation and curves are about the file beside them."""
    model, data = f"hf:{language_model}/model", f"tokens:{language_model}/tokens_train.uint16,context=8"
    built = ("--data", data, "--layers", "mlp_in.1,ln_final,ln_final_out,unembed")
    assert run(capsys, "build", model, *built, "--out", tmp_path / "run")[0] == 0
    test = f"tokens:{language_model}/tokens_test.uint16,context=8"
    for command in (("ablate", "--tolerance", 9, "--no-stable"), ("curves",)):
        name, *options = command
        code, out, err = run(capsys, name, tmp_path / "run", *options, "--json")
        assert (code, err) == (0, "")
        told = json.loads(out)["data"]
        assert told["spec"] == test
        again = json.loads(run(capsys, name, tmp_path / "run", *options, "--data", test, "--json")[1])["data"]
        assert again == told
    assert told["fingerprint"] == Batches(open_data(test, "test")).fingerprint()
    assert told["fingerprint"] != interbasis.load(tmp_path / "run").provenance.data_fingerprints["data"]
    assert f"{test}: {told['samples']} samples" in what_was_run([facts(tmp_path / "run")])


def test_an_interrupted_ablation_goes_on(capsys, folder, monkeypatch):
    from interbasis.ablation.evaluation import Evaluation

    monkeypatch.setenv("INTERBASIS_SAVE_EVERY", "0")
    whole = json.loads(run(capsys, "ablate", folder, "--tolerance", 0.02, "--json")[1])
    (folder / "ablation.json").unlink()
    original, calls = Evaluation.edges, []

    def counted(self, masks, limit=None):
        calls.append(1)
        if len(calls) == 9:
            raise KeyboardInterrupt
        return original(self, masks, limit)

    monkeypatch.setattr(Evaluation, "edges", counted)
    assert run(capsys, "ablate", folder, "--tolerance", 0.02)[0] == 130
    assert (folder / ".resume").exists()
    assert not (folder / "ablation.json").exists()
    code, _, err = run(capsys, "ablate", folder, "--tolerance", 0.03)
    assert code == 2
    assert "begun with tolerance = 0.02, not 0.03" in err
    again = json.loads(run(capsys, "ablate", folder, "--tolerance", 0.02, "--json")[1])
    assert again == whole


def test_tables_for_people(capsys, folder):
    for command, words in (
        (["ablate", "--edges", "--nodes", "--tolerance", "0.02"], ["Edges required", "Nodes required"]),
        (["curves"], ["largest edges kept", "all sections", "Gini"]),
        (["modules", "--null-graphs", "5", "--cross-check"], ["modularity", "leidenalg", "Vertex cuts"]),
    ):
        code, out, err = run(capsys, command[0], folder, *command[1:])
        assert (code, err) == (0, "")
        assert all(word in out for word in words), out


def test_modules_take_the_smallest_edges_needed(capsys, folder):
    before = json.loads(run(capsys, "modules", folder, "--null-graphs", 0, "--json")[1])
    assert before["epsilon_from_ablation"] is False
    ablation = json.loads(run(capsys, "ablate", folder, "--tolerance", 0.02, "--json")[1])
    after = json.loads(run(capsys, "modules", folder, "--null-graphs", 0, "--json")[1])
    assert after["epsilon_from_ablation"] is True
    assert after["epsilons"] == [row["epsilon"] for row in ablation["sections"]]
    sizes = [layer.features for layer in interbasis.load(folder).layers]
    assert [len(layer["assignment"]) for layer in after["layers"]] == sizes


def test_controls_are_stored(capsys, folder):
    code, out, err = run(capsys, "controls", folder, "--tolerance", 0.05, "--json")
    assert (code, err) == (0, "")
    rows = json.loads(out)["rows"]
    assert [row["basis"] for row in rows[:1]] == ["lib"]
    assert {row["network"] for row in rows} == {"trained", "shuffled", "reinitialised"}
    assert load_result(folder, "controls")["rows"] == rows


def test_controls_of_some_bases_and_of_several_scrambled_networks(capsys, folder):
    chosen = ["--bases", "pca,neuron", "--stressed", "", "--scrambles", 2, "--seed", 1, "--json"]
    code, out, err = run(capsys, "controls", folder, *chosen)
    assert (code, err) == (0, "")
    rows = json.loads(out)["rows"]
    assert all(row["stress"] == [] for row in rows)
    assert [row["name"] for row in rows] == [
        "pca", "pca, edges ranked at random", "neuron", "pca, shuffled weights, seed 1",
        "pca, shuffled weights, seed 2", "pca, reinitialised weights, seed 1",
        "pca, reinitialised weights, seed 2",
    ]  # fmt: skip
    code, _, err = run(capsys, "controls", folder, "--bases", "lip")
    assert (code, "expected bases of lib, gib, pca, neuron, random, received lip" in err) == (
        2,
        True,
    )


def test_interrupted_controls_go_on_with_the_row_they_were_at(capsys, folder, monkeypatch):
    import interbasis.ablation.controls as evidence

    whole = json.loads(run(capsys, "controls", folder, "--tolerance", 0.05, "--json")[1])
    (folder / "controls.json").unlink()
    original, built = evidence.build, []

    def interrupted(network, data, basis, **settings):
        built.append(basis)
        if len(built) == 3:
            raise KeyboardInterrupt
        return original(network, data, basis, **settings)

    monkeypatch.setattr(evidence, "build", interrupted)
    assert run(capsys, "controls", folder, "--tolerance", 0.05)[0] == 130
    code, _, err = run(capsys, "controls", folder, "--tolerance", 0.05, "--seed", 1)
    assert (code, "begun with seed = 0, not 1" in err) == (2, True)
    assert json.loads(run(capsys, "controls", folder, "--tolerance", 0.05, "--json")[1]) == whole
    assert built == ["lib", "gib", "pca", "pca", "neuron", "random", "lib", "lib"]
    assert not (folder / ".resume").exists()


def test_interrupted_features_go_on_with_the_layer_they_were_at(capsys, folder, monkeypatch):
    import interbasis.features.analysis as analysis

    whole = run(capsys, "features", folder, "--top", 3, "--json")[1]
    before = {path: path.read_bytes() for path in folder.iterdir()}
    original, calls = analysis.fourier, []

    def interrupted(network, basis):
        calls.append(basis.name)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return original(network, basis)

    monkeypatch.setattr(analysis, "fourier", interrupted)
    assert run(capsys, "features", folder, "--top", 3)[0] == 130
    code, _, err = run(capsys, "features", folder, "--top", 4)
    assert code == 2
    assert "begun with top = 3, not 4" in err
    assert ".resume/features to start anew" in err
    assert run(capsys, "features", folder, "--top", 3, "--json")[1] == whole
    assert calls == ["attn_in.0", "mlp_in.0", "mlp_in.0", "unembed", "output"]
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize("command", [["features", "--top", "3"], ["ablate", "--tolerance", "1"]])
def test_a_full_disk_leaves_the_earlier_result_and_state(capsys, folder, monkeypatch, command):
    monkeypatch.setenv("INTERBASIS_SAVE_EVERY", "0")
    name = {"features": "features", "ablate": "ablation"}[command[0]]
    assert run(capsys, command[0], folder, *command[1:])[0] == 0
    before = {path: path.read_bytes() for path in folder.iterdir()}
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (600, hard))
    try:
        code, out, err = run(capsys, command[0], folder, *command[1:])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert "could not write" in err
    assert "free some space" in err
    assert {path: path.read_bytes() for path in folder.iterdir() if path.name != ".resume"} == before
    assert not list(folder.rglob("*.tmp"))
    assert run(capsys, command[0], folder, *command[1:])[0] == 0
    assert {path: path.read_bytes() for path in folder.iterdir()} == before
    assert load_result(folder, name)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["ablate", "--tolerance", "-1"], "number from 0 on"),
        (["ablate", "--sections", "mlp"], "there is no section from 'mlp'"),
        (["ablate", "--data", "nothing"], "expected data as"),
        (["modules", "--resolution", "0"], "resolution is above 0"),
    ],
)
def test_bad_requests(capsys, folder, arguments, reason):
    code, _, err = run(capsys, arguments[0], folder, *arguments[1:])
    assert code == 2
    assert reason in " ".join(err.split())
    assert not (folder / "ablation.json").exists()


def test_a_model_that_changed_is_refused(capsys, folder, checkpoint):
    before = checkpoint.read_bytes()
    try:
        save_file(initial_weights(Recipe(seed=4, p=11, width=16, heads=2, hidden=24)), checkpoint)
        code, _, err = run(capsys, "ablate", folder)
    finally:
        checkpoint.write_bytes(before)
    assert code == 2
    assert "its weights have changed" in " ".join(err.split())
