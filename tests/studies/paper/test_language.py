"""The paper's section 3.3 on a tiny random GPT-2, and on a few tokens of a real one."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import interbasis
from command_line import Cli
from interbasis.analysis.ablation.masked_pass import ablate_edges
from interbasis.analysis.ablation.search import edges_required
from interbasis.analysis.stages import ablate, features
from interbasis.analysis.stages.ablate import AblationResult
from interbasis.analysis.stages.features import FeaturesResult
from interbasis.analysis.stored_results import load_result, load_tensors
from interbasis.run.run import open_run
from interbasis_studies.paper import runner
from interbasis_studies.paper.plan import Plan
from interbasis_studies.paper.tasks.language.measures import kinds, shape
from interbasis_studies.paper.tasks.language.records import TokensUsed
from studies.paper.conftest import Reproduced, make_plan
from tiny_models import random_model


@pytest.fixture(scope="module")
def stories(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of two blocks, and tokens in which every other one repeats the one before."""
    folder = tmp_path_factory.mktemp("stories")
    random_model("gpt2", torch.float32).save_pretrained(folder / "model")
    rng = np.random.default_rng(0)
    for split, count in (("train", 1200), ("test", 600)):
        rng.integers(2, 23, count // 2).repeat(2).astype(np.uint16).tofile(folder / f"tokens_{split}.uint16")
    return folder


def plan_for(stories: Path, out: Path, **given: Any) -> Plan:
    named = {"model": f"hf:{stories}/model", "data": f"tokens:{stories}/tokens_train.uint16"}
    few = {"tokens": 640, "edge_tokens": 160, "test_tokens": 320}
    return make_plan("tinystories", out, **named | few | given)


@pytest.fixture(scope="module")
def reproduced(stories: Path, tmp_path_factory: pytest.TempPathFactory) -> Reproduced:
    plan = plan_for(stories, tmp_path_factory.mktemp("reproduced"))
    return plan, runner.reproduce(plan)


def test_every_basis_is_a_run_on_the_same_windows(reproduced: Reproduced) -> None:
    plan, result = reproduced
    assert [job.basis for job in result.jobs] == ["lib", "pca"]
    assert result.missing == ()
    for job in result.jobs:
        run: Any = open_run(plan.out / job.run)
        assert run.graph.provenance.samples == {"data": 40, "jacobian_data": 40, "edge_data": 10}
        assert job.tokens == TokensUsed(basis=640, edges=160, test=320, test_windows=20, described=640)
        assert len(run.data(None, "train")) == 40
        assert len(run.data()) == 600 // 17
        assert [*job.layers] == [*job.node_layers] == run.network.layers
        assert job.kinds == kinds(run.network)
        assert [*job.ablation.sections] == run.graph.section_names
    stored = json.loads((plan.out / "reproduction.json").read_text())
    assert stored == json.loads(result.model_dump_json(serialize_as_any=True))


def test_the_numbers_are_those_of_the_library(reproduced: Reproduced) -> None:
    plan, result = reproduced
    run = open_run(plan.out / "lib")
    test: Any = run.data(f"{plan.data},samples=20")
    edges = edges_required(run.network, run.graph, test, "cross_entropy", 0.1, stable=False, intervals=True)
    job = result.jobs[0]
    assert job.counts == [one.count for one in edges]
    assert [row.interval for row in job.ablation.sections.values()] == [one.interval for one in edges]
    inputs, labels = test.all()
    logits = run.network.to(torch.float32)(inputs)
    entropy = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()).item()
    assert job.ablation.baseline == pytest.approx(entropy, abs=1e-5)
    masks = {k: one.mask for k, one in enumerate(edges)}
    together = ablate_edges(run.network, run.graph, inputs, masks)
    entropy = torch.nn.functional.cross_entropy(together.flatten(0, 1), labels.flatten()).item()
    assert job.combined[-1].value == pytest.approx(entropy, abs=1e-5)
    assert job.combined[-1].edges == sum(one.count for one in edges)


def test_bases_are_compared_on_paired_draws(reproduced: Reproduced) -> None:
    plan, result = reproduced
    draws = [load_tensors(plan.out / basis, AblationResult) for basis in ("lib", "pca")]
    lib, pca = (job.ablation for job in result.jobs)
    assert [row.source for row in result.comparison] == [*lib.sections]
    for row in result.comparison:
        name = f"count_draws.{row.source}"
        ratio = draws[0][name].clamp_min(1) / draws[1][name].clamp_min(1)
        low, high = ratio.quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
        assert row.interval == pytest.approx((low, high))
        assert (row.lib, row.pca) == (lib.counts[row.source], pca.counts[row.source])


def test_all_claims_get_a_verdict_and_the_page_shows_them(reproduced: Reproduced, tmp_path: Path) -> None:
    plan, result = reproduced
    assert [v.claim for v in result.verdicts] == [f"L{k}" for k in range(1, 6)]
    assert all(v.ruling != "open" for v in result.verdicts)
    text = (plan.out / "report.md").read_text()
    for title in ("Verdicts", "Edges required", "Sections ablated together", "Node layers",
                  "Positional features", "Layer norms", "Inputs of attention", "Feature examples", "Figures",
                  "Times"):  # fmt: skip
        assert f"## {title}\n" in text
    assert plan.command in text
    assert "Not finished" not in text
    runner.write_page(result, plan, tmp_path / "page.md")
    copied = (tmp_path / "page.md").read_text()
    for figure in result.figures:
        name = figure.file.rpartition("/")[2]
        assert f"(page/{name})" in copied
        assert (tmp_path / "page" / name).read_bytes().startswith(b"\x89PNG")


@pytest.fixture
def without_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "draw_figures", lambda *arguments: ())


@pytest.mark.usefixtures("without_figures")
def test_finished_jobs_are_not_run_again_and_others_are_in_the_way(
    reproduced: Reproduced, stories: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, result = reproduced

    def refuse(*arguments: Any, **options: Any) -> None:
        raise AssertionError("this was finished")

    with monkeypatch.context() as patch:
        for stage in (ablate, features):
            patch.setattr(stage, "run", refuse)
        patch.setattr("interbasis_studies.paper.task.build_by_name", refuse)
        assert runner.reproduce(plan).jobs == result.jobs
    with pytest.raises(interbasis.InterbasisError, match=r"samples=40, not .*samples=20; .*--out"):
        runner.reproduce(plan_for(stories, plan.out, tokens=320))


@pytest.mark.usefixtures("without_figures")
def test_a_killed_job_resumes_behind_what_is_stored(
    reproduced: Reproduced,
    stories: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    plan = plan_for(stories, tmp_path, bases="pca")

    class KilledError(Exception):
        pass

    def kill(*arguments: Any, **options: Any) -> None:
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(features, "run", kill)
        with pytest.raises(KilledError):
            runner.reproduce(plan)
    assert [job.basis for job in runner.report(plan).missing] == ["pca"]
    assert "**Not finished yet:** PCA." in (plan.out / "report.md").read_text()
    with monkeypatch.context() as patch:
        patch.setattr(ablate, "run", kill)
        (job,) = runner.reproduce(plan).jobs
    for name in ("ablation", "node_layers", "combined", "norms", "reach", "examples"):
        assert getattr(job, name) == getattr(reproduced[1].jobs[1], name)
    assert [*job.times.stages] == [
        "build", "edges required, attention", "edges required, MLP", "edges required, layer norm", "features",
        "sections together", "measures",
    ]  # fmt: skip
    rulings = [v.ruling for v in runner.report(plan).verdicts]
    assert rulings == ["open"] * 5  # they are about LIB, or LIB and PCA


@pytest.mark.usefixtures("without_figures")
def test_the_quick_form_ablates_the_middle_block(stories: Path, tmp_path: Path, cli: Cli) -> None:
    options = ["--model", f"hf:{stories}/model", "--data", f"tokens:{stories}/tokens_train.uint16"]
    printed = cli(
        "reproduce", "gpt2", "--quick", "--json", "--bases", "lib", *options, "--out", tmp_path
    ).json
    assert [*printed["jobs"][0]["ablation"]["sections"]] == ["attn_in.1", "mlp_in.1"]
    assert printed["command"].startswith("interbasis reproduce gpt2 --model hf:")
    assert load_result(tmp_path / "lib", FeaturesResult) is not None
    assert printed["jobs"][0]["tokens"]["test"] == 35 * 16  # all there is


def test_the_command_gives_the_same_plan(stories: Path, tmp_path: Path) -> None:
    plan = plan_for(stories, tmp_path, norms=False, queries=4, bases="pca,lib")
    words = plan.command.split()
    assert words[:3] == ["interbasis", "reproduce", "tinystories"]
    assert words[-2:] == ["--out", str(tmp_path)]
    for word in ("--no-norms", "--queries 4", "--bases pca,lib", "--tokens 640", "--edge-tokens 160"):
        assert word in plan.command
    sampled = plan_for(stories, tmp_path, edge_group=8, edge_positions=4)
    assert sampled.settings.sampling == {"edge_group": 8, "edge_positions": 4}
    assert "--edge-group 8 --edge-positions 4" in sampled.command
    paper = make_plan("gpt2", tmp_path)
    assert paper.command == f"interbasis reproduce gpt2 --out {tmp_path}"
    assert (paper.model, paper.settings.tokens, paper.settings.tolerance) == ("hf:gpt2", 512_000, 0.1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tinystories", "--seeds", "1"], "tinystories has no option --seeds"),
        (["modadd", "--tokens", "5"], "modadd has no option --tokens"),
        (["gpt2", "--model", "hf:somewhere"], "name text with --data"),
        (["gpt2", "--bases", "ica"], "expected bases among lib, gib, jib, pca, neuron, random"),
        (["gpt2", "--report-only"], "nothing to report"),
    ],
)
def test_bad_input_is_one_sentence(tmp_path: Path, cli: Cli, arguments: list[str], message: str) -> None:
    code, _, err = cli("reproduce", *arguments, "--out", tmp_path / "new")
    assert code == 2
    assert message in " ".join(err.split())
    assert not (tmp_path / "new").exists()


def test_numbers_of_tokens_are_at_least_1(tmp_path: Path) -> None:
    with pytest.raises(interbasis.InterbasisError, match="test_tokens cannot be 0"):
        make_plan("gpt2", tmp_path, test_tokens=0)


def test_profiles_are_told_apart() -> None:
    place = torch.arange(64, dtype=torch.float64)
    step, line, wave = (place == 0).double(), place / 10, torch.sin(2 * torch.pi * 2 * place / 63)
    assert shape(step).step == pytest.approx(1)
    assert shape(line).line == pytest.approx(1)
    assert shape(wave).sinusoid == pytest.approx(1)
    assert shape(wave).cycles == 2
    assert max(shape(wave).step, shape(wave).line) < 0.2


@pytest.mark.usefixtures("without_figures")
def test_a_real_model(shared: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    folder = shared / "tinystories-gpt-280k"
    plan = make_plan(
        "tinystories", tmp_path, model=f"hf:{folder},blocks=2-2", norms=False, tokens=2048, edge_tokens=256,
        test_tokens=512, data=f"tokens:{folder}/tokens_train.uint16,context=64",
    )  # fmt: skip
    jobs: Any = runner.reproduce(plan).jobs
    lib, pca = jobs
    assert [*lib.ablation.sections] == ["attn_in.2", "mlp_in.2"]
    windows: Any = open_run(plan.out / "lib").data(f"{plan.data},samples=8")
    inputs, labels = windows.all()
    logits = AutoModelForCausalLM.from_pretrained(folder)(inputs).logits
    entropy = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()).item()
    assert lib.ablation.baseline == pca.ablation.baseline == pytest.approx(entropy, abs=1e-4)
    for job in (lib, pca):
        for row in job.ablation.sections.values():
            assert entropy < row.value <= entropy + 0.1 + 1e-4
            assert row.interval[0] <= row.count * 1.2
            assert row.interval[1] >= row.count / 1.2
    assert lib.profiles.features[0].share > 0.5  # the position, early in the sequence
