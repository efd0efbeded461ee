"""The paper's section 3.3 on a tiny random GPT-2, and on a few tokens of a real one."""

import json

import numpy as np
import pytest
import torch

import interbasis
from interbasis.cli import main
from interbasis.paper import language, language_pieces
from interbasis.paper.language_measures import kinds, shape
from interbasis.paper.language_plan import LanguagePlan
from interbasis.paper.run import write_page
from interbasis.run.opened import open_run
from interbasis.run.results import load_result, load_tensors
from tiny_models import random_model


@pytest.fixture(scope="module")
def stories(tmp_path_factory):
    """A model of two blocks, and tokens in which every other one repeats the one before."""
    folder = tmp_path_factory.mktemp("stories")
    random_model("gpt2", torch.float32).save_pretrained(folder / "model")
    rng = np.random.default_rng(0)
    for split, count in (("train", 1200), ("test", 600)):
        rng.integers(2, 23, count // 2).repeat(2).astype(np.uint16).tofile(folder / f"tokens_{split}.uint16")
    return folder


def plan_for(stories, out, **given):
    named = {"model": f"hf:{stories}/model", "data": f"tokens:{stories}/tokens_train.uint16"}
    few = {"tokens": 640, "edge_tokens": 160, "test_tokens": 320}
    return LanguagePlan.of("tinystories", out, **named | few | given)


@pytest.fixture(scope="module")
def reproduced(stories, tmp_path_factory):
    plan = plan_for(stories, tmp_path_factory.mktemp("reproduced"))
    return plan, language.reproduce(plan)


def test_every_basis_is_a_run_on_the_same_windows(reproduced):
    plan, found = reproduced
    assert [piece["basis"] for piece in found["pieces"]] == ["lib", "pca"]
    assert found["missing"] == []
    for piece in found["pieces"]:
        run = open_run(plan.folder(piece["basis"]))
        assert run.graph.provenance.samples == {"data": 40, "jacobian_data": 40, "edge_data": 10}
        assert piece["data"] | {"fingerprint": ""} == {
            "tokens": 640, "edge_tokens": 160, "test_tokens": 320, "test_windows": 20, "fingerprint": "",
        }  # fmt: skip
        assert len(run.data(None, "train")) == 40
        assert len(run.data()) == 600 // 17
        assert [row["name"] for row in piece["layers"]] == run.network.layers
        assert [row["kind"] for row in piece["edges"]] == kinds(run.network)
    assert json.loads((plan.out / "reproduction.json").read_text()) == found


def test_the_numbers_are_those_of_the_library(reproduced):
    plan, found = reproduced
    run = open_run(plan.folder("lib"))
    test = run.data(f"{plan.data},samples=20")
    edges = interbasis.edges_required(
        run.network, run.graph, test, "cross_entropy", 0.1, stable=False, intervals=True
    )
    piece = found["pieces"][0]
    assert [row["count"] for row in piece["edges"]] == [one.count for one in edges]
    assert [tuple(row["interval"]) for row in piece["edges"]] == [one.interval for one in edges]
    inputs, labels = test.all()
    logits = run.network.to(torch.float32)(inputs)
    entropy = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()).item()
    assert piece["baseline"] == pytest.approx(entropy, abs=1e-5)
    masks = {k: one.mask for k, one in enumerate(edges)}
    together = interbasis.ablate_edges(run.network, run.graph, inputs, masks)
    entropy = torch.nn.functional.cross_entropy(together.flatten(0, 1), labels.flatten()).item()
    assert piece["together"][-1]["value"] == pytest.approx(entropy, abs=1e-5)
    assert piece["together"][-1]["edges"] == sum(one.count for one in edges)


def test_bases_are_compared_on_paired_draws(reproduced):
    plan, found = reproduced
    draws = [load_tensors(plan.folder(basis), "ablation") for basis in ("lib", "pca")]
    assert len(found["comparison"]) == len(found["pieces"][0]["edges"])
    for k, row in enumerate(found["comparison"]):
        ratio = draws[0][f"count_draws.{k}"].clamp_min(1) / draws[1][f"count_draws.{k}"].clamp_min(1)
        low, high = ratio.quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
        assert row["interval"] == pytest.approx([low, high])
        assert row["lib"] == found["pieces"][0]["edges"][k]["count"]
        assert row["pca"] == found["pieces"][1]["edges"][k]["count"]


def test_all_claims_get_a_verdict_and_the_page_shows_them(reproduced, tmp_path):
    plan, found = reproduced
    assert [v["claim"] for v in found["verdicts"]] == [f"L{k}" for k in range(1, 6)]
    assert all(v["ruling"] != "open" for v in found["verdicts"])
    text = (plan.out / "report.md").read_text()
    for title in ("Verdicts", "Edges required", "Sections ablated together", "Node layers",
                  "Positional features", "Layer norms", "Inputs of attention", "Feature examples", "Figures",
                  "Times"):  # fmt: skip
        assert f"## {title}\n" in text
    assert plan.command in text
    assert "Not finished" not in text
    write_page(found, plan, tmp_path / "page.md")
    copied = (tmp_path / "page.md").read_text()
    for figure in found["figures"]:
        name = figure["file"].rpartition("/")[2]
        assert f"(page/{name})" in copied
        assert (tmp_path / "page" / name).read_bytes().startswith(b"\x89PNG")


def test_finished_pieces_are_not_done_again_and_others_are_in_the_way(reproduced, stories, monkeypatch):
    plan, found = reproduced

    def refuse(*arguments, **options):
        raise AssertionError("this was finished")

    monkeypatch.setattr(language, "draw_figures", lambda found, plan: [])
    for name in ("build", "ablate_run", "analyse"):
        monkeypatch.setattr(language_pieces, name, refuse)
    assert language.reproduce(plan)["pieces"] == found["pieces"]
    with pytest.raises(interbasis.InterbasisError, match="built from 40 samples of data, not 20"):
        language.reproduce(plan_for(stories, plan.out, tokens=320))


def test_a_killed_piece_goes_on_behind_what_is_stored(reproduced, stories, monkeypatch, tmp_path):
    _, found = reproduced
    plan = plan_for(stories, tmp_path, bases=("pca",))
    monkeypatch.setattr(language, "draw_figures", lambda found, plan: [])

    class KilledError(Exception):
        pass

    def kill(*arguments, **options):
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(language_pieces, "analyse", kill)
        with pytest.raises(KilledError):
            language.reproduce(plan)
    assert language.report(plan)["missing"] == [{"basis": "pca"}]
    assert "**Not finished yet:** pca." in (plan.out / "report.md").read_text()
    with monkeypatch.context() as patch:
        for name in ("build", "ablate_run"):
            patch.setattr(language_pieces, name, kill)
        (piece,) = language.reproduce(plan)["pieces"]
    same = ("edges", "layers", "together", "norms", "reach")
    assert {key: piece[key] for key in same} == {key: found["pieces"][1][key] for key in same}
    rulings = [v["ruling"] for v in language.report(plan)["verdicts"]]
    assert rulings == ["open"] * 5  # they are about LIB, or LIB and PCA


def test_the_quick_form_ablates_the_middle_block(stories, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(language, "draw_figures", lambda found, plan: [])
    options = ["--model", f"hf:{stories}/model", "--data", f"tokens:{stories}/tokens_train.uint16"]
    with pytest.raises(SystemExit, match=r"^0$"):
        main(["reproduce", "gpt2", "--quick", "--json", "--bases", "lib", *options, "--out", str(tmp_path)])
    found = json.loads(capsys.readouterr().out)
    assert [row["from"] for row in found["pieces"][0]["edges"]] == ["attn_in.1", "mlp_in.1"]
    assert found["command"].startswith("interbasis reproduce gpt2 --model hf:")
    assert load_result(tmp_path / "lib", "features") is not None
    assert found["pieces"][0]["data"]["test_tokens"] == 35 * 16  # all there is


def test_the_command_gives_the_same_plan(stories, tmp_path):
    plan = plan_for(stories, tmp_path, norms=False, queries=4, bases=("pca", "lib"))
    words = plan.command.split()
    assert words[:3] == ["interbasis", "reproduce", "tinystories"]
    assert words[-2:] == ["--out", str(tmp_path)]
    for word in ("--no-norms", "--queries 4", "--bases pca,lib", "--tokens 640", "--edge-tokens 160"):
        assert word in plan.command
    sampled = plan_for(stories, tmp_path, edge_group=8, edge_positions=4)
    assert sampled.settings == {"edge_group": 8, "edge_positions": 4}
    assert "--edge-group 8 --edge-positions 4" in sampled.command
    paper = LanguagePlan.of("gpt2", tmp_path)
    assert paper.command == f"interbasis reproduce gpt2 --out {tmp_path}"
    assert (paper.model, paper.tokens, paper.tolerance) == ("hf:gpt2", 512_000, 0.1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tinystories", "--seeds", "1"], "tinystories has no option --seeds"),
        (["modadd", "--tokens", "5"], "modadd has no option --tokens"),
        (["gpt2", "--model", "hf:somewhere"], "name text with --data"),
        (["gpt2", "--bases", "ica"], "expected bases among lib, pca, gib, random and neuron"),
        (["gpt2", "--test-tokens", "0"], "test_tokens is at least 1"),
        (["gpt2", "--report-only"], "nothing to report"),
    ],
)
def test_bad_input_is_one_sentence(tmp_path, capsys, arguments, message):
    with pytest.raises(SystemExit) as end:
        main(["reproduce", *arguments, "--out", str(tmp_path / "new")])
    assert end.value.code == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "new").exists()


def test_profiles_are_told_apart():
    place = torch.arange(64, dtype=torch.float64)
    step, line, wave = (place == 0).double(), place / 10, torch.sin(2 * torch.pi * 2 * place / 63)
    assert shape(step)["position 0"] == pytest.approx(1)
    assert shape(line)["linear"] == pytest.approx(1)
    assert shape(wave)["sinusoid"] == pytest.approx(1)
    assert shape(wave)["cycles"] == 2
    assert max(shape(wave)[name] for name in ("position 0", "linear")) < 0.2


def test_a_real_model(shared, tmp_path, monkeypatch):
    from transformers import AutoModelForCausalLM

    monkeypatch.setattr(language, "draw_figures", lambda found, plan: [])
    folder = shared / "tinystories-gpt-280k"
    plan = LanguagePlan.of(
        "tinystories", tmp_path, model=f"hf:{folder},blocks=2-2", norms=False, tokens=2048, edge_tokens=256,
        test_tokens=512, data=f"tokens:{folder}/tokens_train.uint16,context=64",
    )  # fmt: skip
    found = language.reproduce(plan)
    lib, pca = found["pieces"]
    assert [row["from"] for row in lib["edges"]] == ["attn_in.2", "mlp_in.2"]
    inputs, labels = open_run(plan.folder("lib")).data(f"{plan.data},samples=8").all()
    logits = AutoModelForCausalLM.from_pretrained(folder)(inputs).logits
    entropy = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()).item()
    assert lib["baseline"] == pca["baseline"] == pytest.approx(entropy, abs=1e-4)
    for piece in (lib, pca):
        for row in piece["edges"]:
            assert entropy < row["value"] <= entropy + 0.1 + 1e-4
            assert row["interval"][0] <= row["count"] * 1.2
            assert row["interval"][1] >= row["count"] / 1.2
    assert lib["profiles"]["features"][0]["share"] > 0.5  # the position, early in the sequence
