"""The whole of a reproduction on tiny models: pieces, resuming, report; numbers against the library's own."""

import json

import pytest
import torch

import interbasis
from interbasis.cli import main
from interbasis.features.fourier import FourierLabel, Term
from interbasis.paper import modadd, pieces, run
from interbasis.paper.claims import verdicts
from interbasis.paper.drawing import Drawn
from interbasis.paper.plan import Plan
from interbasis.paper.weights import checkpoint, find_seeds
from interbasis.run.opened import open_run
from interbasis.run.results import load_result
from interbasis.runtime.progress import silent


def test_every_seed_and_basis_is_a_run(additions):
    plan, found = additions
    assert find_seeds(plan) == (0, 1)
    done = {(piece["seed"], piece["basis"]) for piece in found["pieces"]}
    assert done == {(seed, basis) for seed in (0, 1) for basis in ("lib", "pca", "gib")}
    assert {(row["seed"], row["basis"]) for row in found["missing"]} == {
        (seed, basis) for seed in (2, 3, 4) for basis in ("lib", "pca", "gib")
    }
    assert json.loads((plan.out / "reproduction.json").read_text())["pieces"] == found["pieces"]
    for piece in found["pieces"]:
        opened = open_run(plan.out / piece["run"])
        assert opened.graph.config.relative_threshold == 0
        assert opened.graph.config.basis == piece["basis"]
        assert load_result(opened.folder, "modules")["resolution"] == 1


def test_the_numbers_are_those_of_the_library(additions):
    plan, found = additions
    piece = next(p for p in found["pieces"] if (p["seed"], p["basis"]) == (1, "pca"))
    opened = open_run(plan.folder(1, "pca"))
    test = opened.data()
    edges = interbasis.edges_required(opened.network, opened.graph, test)
    nodes = interbasis.nodes_required(opened.network, opened.graph, test)
    assert [(row["count"], row["stable_count"]) for row in piece["edges"]] == [
        (one.count, one.stable_count) for one in edges
    ]
    assert [row["count"] for row in piece["nodes"]] == [one.count for one in nodes]
    inputs, labels = test.all()
    right = (opened.network.double()(inputs).argmax(-1) == labels).double().mean().item()
    assert piece["test_accuracy"] == right
    for row in piece["modules"]:
        again = interbasis.find_modules(
            opened.graph, [one.epsilon for one in edges], row["resolution"], null_graphs=3
        )
        assert row["modularity"] == again.modularity
        assert row["null"]["z"] == again.null.z
    assert [row["resolution"] for row in piece["modules"]] == [0.5, 1.0]
    labels = interbasis.features.fourier(opened.network, opened.graph.layers[1], form="paper")
    counted = interbasis.features.monosemantic(labels)
    assert piece["monosemantic"][1]["paper"] == counted.paper
    assert [one["features"] for one in piece["idle"]] == [
        list(one.features) for one in interbasis.features.idle(opened.graph)
    ]


def test_all_claims_get_a_verdict_and_the_page_shows_them(additions):
    plan, found = additions
    assert [v["claim"] for v in found["verdicts"]] == [f"M{k}" for k in range(1, 9)]
    still_open = {v["claim"] for v in found["verdicts"] if v["ruling"] == "open"}
    assert still_open == {"M3", "M7"}  # they say how seeds differ, and two are too few
    more = [piece | {"seed": piece["seed"] + shift} for piece in found["pieces"] for shift in (0, 2)]
    assert all(verdict.ruling != "open" for verdict in verdicts("modadd", more))
    assert found["verdicts"][0]["ruling"] == "reproduced"
    text = (plan.out / "report.md").read_text()
    for title in ("Verdicts", "Edges required", "Nodes required", "Functional relevance", "Monosemanticity",
                  "Modules", "Interaction sparsity", "Times"):  # fmt: skip
        assert f"## {title}\n" in text
    assert "**No weights were given** for seed 2, 3, 4." in text
    assert "Not finished" not in text
    assert plan.command in text
    for piece in found["pieces"]:
        counts = " | ".join(f"{row['count']}" for row in piece["edges"][:1])
        assert f"| {piece['basis'].upper()} | here | {piece['seed']} | {counts}" in text


def test_claims_without_their_bases_are_open(additions):
    found = additions[1]["pieces"]
    lib = [piece for piece in found if piece["basis"] == "lib"]
    rulings = {v.claim: v.ruling for v in verdicts("modadd", lib)}
    assert [claim for claim, ruling in rulings.items() if ruling != "open"] == ["M1"]
    assert (
        {v.ruling for v in verdicts("modadd", [])} == {v.ruling for v in verdicts("cifar10", [])} == {"open"}
    )


def test_finished_pieces_are_not_done_again(additions, monkeypatch):
    plan, found = additions

    def refuse(*arguments, **options):
        raise AssertionError("this was finished")

    for name in ("build", "ablate_run", "find_modules"):
        monkeypatch.setattr(pieces, name, refuse)
    again = run.reproduce(plan)
    assert again["pieces"] == found["pieces"]


def test_a_killed_piece_goes_on_behind_what_is_stored(additions, monkeypatch, tmp_path):
    plan, found = additions
    other = Plan.of("modadd", tmp_path / "out", checkpoints=plan.checkpoints, seeds=(0,), bases=("lib",))

    class KilledError(Exception):
        pass

    def kill(*arguments, **options):
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(pieces, "find_modules", kill)
        with pytest.raises(KilledError):
            run.reproduce(other)
    assert run.report(other)["pieces"] == []
    assert "**Not finished yet:** LIB of seed 0." in (other.out / "report.md").read_text()
    with monkeypatch.context() as patch:
        for name in ("build", "ablate_run"):
            patch.setattr(pieces, name, kill)
        (piece,) = run.reproduce(other)["pieces"]
    before = next(p for p in found["pieces"] if (p["seed"], p["basis"]) == (0, "lib"))
    assert {k: v for k, v in piece.items() if k != "seconds"} == {
        k: v for k, v in before.items() if k != "seconds"
    }
    assert piece["seconds"]["ablation"] is None


def test_a_run_of_other_weights_or_settings_is_in_the_way(additions, tmp_path):
    plan, _ = additions
    with pytest.raises(interbasis.InterbasisError, match="built from other weights"):
        pieces.build_run(
            plan, plan.folder(0, "lib"), f"modadd:{plan.checkpoints}/seed1.safetensors", "lib", 0, silent
        )
    with pytest.raises(interbasis.InterbasisError, match="built with basis = lib, not pca"):
        pieces.build_run(
            plan, plan.folder(0, "lib"), f"modadd:{plan.checkpoints}/seed0.safetensors", "pca", 0, silent
        )


def test_images_get_directions_and_verdicts(pictures):
    plan, found = pictures
    assert [v["claim"] for v in found["verdicts"]] == [f"C{k}" for k in range(1, 7)]
    assert all(v["ruling"] != "open" for v in found["verdicts"])
    lib = found["pieces"][0]
    opened = open_run(plan.folder(0, "lib"))
    assert [row["layer"] for row in lib["directions"]] == opened.network.layers
    assert lib["nodes"] == []
    inputs, labels = opened.data().all()
    animal = torch.isin(labels, torch.tensor((2, 3, 4, 5, 6, 7)))
    layer = opened.graph.layers[2]
    values = interbasis.features.collect(interbasis.features.of(opened.network.double(), layer), inputs)
    row = lib["directions"][2]
    area = interbasis.features.auroc(values, animal)[row["feature"]].item()
    assert row["auroc"] == pytest.approx(max(area, 1 - area), rel=1e-12)
    text = (plan.out / "report.md").read_text()
    assert "## Animal against vehicle\n" in text
    assert f"{row['auroc']:.3f} (f{row['feature']})" in text


def test_a_quick_plan_is_small_and_uses_the_model_that_is_shipped(tmp_path):
    quick = Plan.of("modadd", tmp_path, quick=True)
    assert (quick.seeds, quick.bases, quick.depth.stable) == ((0,), ("lib", "pca"), False)
    assert checkpoint(quick, 0).is_file()
    assert Plan.of("modadd", tmp_path, quick=True, seeds=(3,)).seeds == (3,)
    order = [f"{basis}{seed}" for seed, basis in Plan.of("modadd", tmp_path).pieces((0, 1))]
    assert order == ["lib0", "pca0", "lib1", "pca1", "gib0", "random0", "gib1", "random1"]
    assert Plan.of("cifar10", tmp_path).depth.nodes is False
    assert quick.command == f"interbasis reproduce modadd --quick --out {tmp_path}"


def test_models_that_are_not_given_are_trained_once(tmp_path, monkeypatch):
    from interbasis.training import modadd as training

    trained = []

    def train(recipe, path, report):
        trained.append(recipe.seed)
        report(recipe.steps, 0.1, 1.0)
        path.parent.mkdir(parents=True)
        path.write_bytes(b"weights")

    monkeypatch.setattr(training, "train", train)
    plan, told = Plan.of("modadd", tmp_path), []
    for _ in range(2):
        path = checkpoint(plan, 3, lambda *arguments: told.append(arguments))
    assert path.read_bytes() == b"weights"
    assert trained == [3]
    assert told == [("training, seed 3", 60_000, 60_000)]
    assert find_seeds(plan) == (0, 1, 2, 3, 4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--checkpoints", "{out}/none"], "expected a folder of checkpoints"),
        (["--checkpoints", "{out}"], "has no checkpoint of seed 0; expected modadd-seed0.safetensors"),
        (["--seeds", "0,x"], "whole numbers with commas"),
        (["--bases", "lib,ica"], "expected bases among"),
        (["--data", "cifar10"], "--data is for cifar10"),
        (["--report-only"], "nothing to report"),
    ],
)
def test_bad_input_is_one_sentence(tmp_path, capsys, arguments, message):
    given = [part.format(out=tmp_path) for part in arguments]
    with pytest.raises(SystemExit) as end:
        main(["reproduce", "modadd", "--out", str(tmp_path / "new"), *given])
    assert end.value.code == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "new").exists()


def test_the_command_prints_json_and_writes_the_page_where_it_is_wanted(additions, capsys, tmp_path):
    plan, found = additions
    arguments = ["reproduce", "modadd", "--out", str(plan.out), "--report-only", "--bases", "lib,pca,gib"]
    with pytest.raises(SystemExit, match=r"^0$"):
        main([*arguments, "--page", str(tmp_path / "docs" / "page.md"), "--json"])
    printed = json.loads(capsys.readouterr().out)
    assert printed["verdicts"] == found["verdicts"]
    assert len(printed["pieces"]) == 6
    assert (tmp_path / "docs" / "page.md").read_text().startswith("# Modular addition")
    with pytest.raises(SystemExit, match=r"^0$"):
        main(arguments)
    assert "M8" in capsys.readouterr().out


def test_figures_are_shown_and_go_with_the_page(additions, monkeypatch, tmp_path):
    plan, _ = additions

    def draw(found, folder):
        (folder / "edges.svg").write_text(f"<svg>{len(found['pieces'])}</svg>")
        return [Drawn("Edges required", "Edges", folder / "edges.svg")]

    with monkeypatch.context() as patch:
        patch.setattr(run, "draw_figures", draw)
        found = run.report(plan)
    text = (plan.out / "report.md").read_text()
    assert (
        text.index("## Edges required") < text.index("![Edges](edges.svg)") < text.index("## Nodes required")
    )
    run.write_page(found, plan, tmp_path / "page.md")
    assert "![Edges](page/edges.svg)" in (tmp_path / "page.md").read_text()
    assert (tmp_path / "page" / "edges.svg").read_text() == "<svg>6</svg>"


def label(*terms: tuple[str, float, tuple[int, int]]) -> FourierLabel:
    return FourierLabel(tuple(Term(text, share, k, (0.0,), (1.0,)) for text, share, k in terms), "sum")


def test_a_feature_has_the_frequency_that_most_of_it_has():
    assert modadd.frequency(label(("cos(3x+3y)", 0.3, (3, 3)), ("cos(3x)", 0.25, (3, 0)))) == 3
    assert modadd.frequency(label(("cos(3x+3y)", 0.3, (3, 3)), ("cos(4x)", 0.25, (4, 0)))) is None
    assert modadd.frequency(label(("cos(3x+4y)", 0.9, (3, 4)))) is None
    assert modadd.frequency(label(("const", 1.0, (0, 0)))) is None


def test_modules_are_compared_with_frequencies():
    three, four = (label((f"cos({k}x)", 0.9, (k, 0))) for k in (3, 4))
    layers = [[three, three, three, four, four, four]]
    apart = modadd.frequencies_of(layers, [{"assignment": [0, 0, 0, 1, 1, 1]}])
    assert apart["own"] == apart["considered"] == [3, 4]
    assert apart["agreement"] == pytest.approx(1)
    mixed = modadd.frequencies_of(layers, [{"assignment": [0, 0, 0, 0, 0, 0]}])
    assert (mixed["own"], mixed["agreement"]) == ([], 0)
    split = modadd.frequencies_of(layers, [{"assignment": [0, 0, 0, 1, 2, -1]}])
    assert (split["own"], split["considered"], split["features"]) == ([3], [3], 5)
