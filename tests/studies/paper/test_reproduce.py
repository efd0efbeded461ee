"""The whole of a reproduction on tiny models: pieces, resuming, report; numbers against the library's own."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import interbasis
from command_line import Cli
from interbasis.analysis.ablation.search import edges_required, nodes_required
from interbasis.analysis.features.records import FourierLabel, FourierTerm
from interbasis.analysis.modules.modules import find_modules
from interbasis.analysis.stages import ablate, modules
from interbasis.analysis.stages.modules import ModulesResult
from interbasis.analysis.stored_results import FORMAT, load_result
from interbasis.run.named_build import build_by_name
from interbasis.run.run import open_run
from interbasis_studies.paper import runner
from interbasis_studies.paper.claims import Verdict
from interbasis_studies.paper.plan import Plan
from interbasis_studies.paper.records import Reproduction, SavedFigure
from interbasis_studies.paper.tasks import open_task
from interbasis_studies.paper.tasks.modadd import measures
from studies.paper.conftest import Reproduced, make_plan
from widths import check_command


def job_of(result: Reproduction[Any], seed: int, basis: str) -> Any:
    return next(job for job in result.jobs if (job.seed, job.basis) == (seed, basis))


def verdicts(plan: Plan, result: Reproduction[Any], jobs: list[Any]) -> list[Verdict]:
    """What the task says of some jobs only."""
    return open_task(plan).verdicts(result.model_copy(update={"jobs": tuple(jobs)}))


def test_every_seed_and_basis_is_a_run(additions: Reproduced) -> None:
    plan, result = additions
    task: Any = open_task(plan)
    assert task.seeds() == (0, 1)
    assert {(job.seed, job.basis) for job in result.jobs} == {
        (seed, basis) for seed in (0, 1) for basis in ("lib", "pca", "gib")
    }
    assert {(job.seed, job.basis) for job in result.missing} == {
        (seed, basis) for seed in (2, 3, 4) for basis in ("lib", "pca", "gib")
    }
    stored = json.loads((plan.out / "reproduction.json").read_text())
    assert stored["jobs"] == json.loads(result.model_dump_json(serialize_as_any=True))["jobs"]
    for job in result.jobs:
        opened = open_run(plan.out / job.run)
        assert opened.graph.config.relative_threshold == 0
        assert opened.graph.config.basis == job.basis
        assert load_result(opened.folder, ModulesResult).resolution == 1


def test_the_numbers_are_those_of_the_library(additions: Reproduced) -> None:
    plan, result = additions
    job = job_of(result, 1, "pca")
    opened = open_run(plan.out / job.run)
    test: Any = opened.data()
    edges = edges_required(opened.network, opened.graph, test)
    nodes = nodes_required(opened.network, opened.graph, test)
    assert [(row.count, row.stable_count) for row in job.ablation.sections.values()] == [
        (one.count, one.stable_count) for one in edges
    ]
    assert [row.count for row in job.ablation.layers.values()] == [one.count for one in nodes]
    inputs, labels = test.all()
    right = (opened.network.double()(inputs).argmax(-1) == labels).double().mean().item()
    assert job.test_accuracy == right
    for partition in job.partitions:
        again = find_modules(
            opened.graph, [one.epsilon for one in edges], partition.resolution, null_graphs=3
        )
        assert partition.result.modularity == again.modularity
        assert partition.result.null.z == again.null.z
    assert [partition.resolution for partition in job.partitions] == [0.5, 1.0]
    layer = opened.graph.layers[1]
    labels = interbasis.features.fourier(opened.network, layer, form="paper")
    assert job.monosemantic[layer.name].paper == interbasis.features.monosemantic(labels).paper
    assert list(job.idle.values()) == interbasis.features.idle(opened.graph)


def test_all_claims_get_a_verdict_and_the_page_shows_them(additions: Reproduced) -> None:
    plan, result = additions
    assert [v.claim for v in result.verdicts] == [f"M{k}" for k in range(1, 9)]
    still_open = {v.claim for v in result.verdicts if v.ruling == "open"}
    assert still_open == {"M3", "M7"}  # they say how seeds differ, and two are too few
    more = [job.model_copy(update={"seed": job.seed + shift}) for job in result.jobs for shift in (0, 2)]
    assert all(verdict.ruling != "open" for verdict in verdicts(plan, result, more))
    assert result.verdicts[0].ruling == "reproduced"
    text = (plan.out / "report.md").read_text()
    for title in ("Verdicts", "Edges required", "Nodes required", "Functional relevance", "Monosemanticity",
                  "Modules", "Interaction sparsity", "Times"):  # fmt: skip
        assert f"## {title}\n" in text
    for part in ("Question.** Which of the paper's claims M1 to M8", "Answer.**", "What it does not show.**"):
        assert f"**{part} " in text
    assert "given** for seed 2, 3, 4." in text
    assert "Not finished" not in text
    assert plan.command in text
    for job in result.jobs:
        assert f"| {job.basis.upper()} | here | {job.seed} | {job.counts[0]}" in text


def test_claims_without_their_bases_are_open(additions: Reproduced, pictures: Reproduced) -> None:
    plan, result = additions
    rulings = {v.claim: v.ruling for v in verdicts(plan, result, result.of_basis("lib"))}
    assert [claim for claim, ruling in rulings.items() if ruling != "open"] == ["M1"]
    for plan, result in (additions, pictures):
        assert {v.ruling for v in verdicts(plan, result, [])} == {"open"}


def test_finished_jobs_are_not_run_again(additions: Reproduced, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, result = additions

    def refuse(*arguments: Any, **options: Any) -> None:
        raise AssertionError("this was finished")

    for stage in (ablate, modules):
        monkeypatch.setattr(stage, "run", refuse)
    monkeypatch.setattr("interbasis_studies.paper.task.build_by_name", refuse)
    assert runner.reproduce(plan).jobs == result.jobs


def test_a_killed_job_resumes_behind_what_is_stored(
    additions: Reproduced, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plan, result = additions
    checkpoints = plan.request.checkpoints
    other = make_plan("modadd", tmp_path / "out", checkpoints=checkpoints, seeds="0", bases="lib")

    class KilledError(Exception):
        pass

    def kill(*arguments: Any, **options: Any) -> None:
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(modules, "run", kill)
        with pytest.raises(KilledError):
            runner.reproduce(other)
    assert runner.report(other).jobs == ()
    assert "yet:** LIB of seed 0." in (other.out / "report.md").read_text()
    with monkeypatch.context() as patch:
        patch.setattr(ablate, "run", kill)
        (job,) = runner.reproduce(other).jobs
    expected = dict(job_of(result, 0, "lib"))
    assert {name for name, value in job if value != expected[name]} <= {"times"}  # rounded, so they may agree
    assert [*job.times.stages] == ["build", "ablation", "measures"]


def test_a_run_of_other_weights_or_settings_is_in_the_way(additions: Reproduced) -> None:
    plan, _ = additions
    task: Any = open_task(plan)
    lib, pca = (next(job for job in task.jobs() if job.basis == basis) for basis in ("lib", "pca"))
    request = task.build_request(lib, lambda *arguments: None)
    weights = f"modadd:{task.checkpoint(1)}"
    with pytest.raises(interbasis.InterbasisError, match="built from other weights;"):
        build_by_name(request.model_copy(update={"model": weights}), lib.folder)
    with pytest.raises(interbasis.InterbasisError, match="built with basis = pca, not lib"):
        build_by_name(request, pca.folder)


def test_jobs_of_an_older_version_are_refused(additions: Reproduced, tmp_path: Path) -> None:
    """Before version 2 results had another header; such files are in the folders of users."""
    plan, _ = additions
    old = make_plan("modadd", tmp_path, checkpoints=plan.request.checkpoints, seeds="0", bases="lib")
    file = shutil.copytree(plan.out / "seed0-lib", tmp_path / "seed0-lib") / "reproduction.json"
    header = json.loads(file.read_text())
    file.write_text(json.dumps({"format": FORMAT, "schema": 1, "graph": header["graph"], "result": {}}))
    for call in (runner.report, runner.reproduce):
        with pytest.raises(interbasis.InterbasisError, match=r"older version .*--out, or delete"):
            call(old)


def test_images_get_directions_and_verdicts(pictures: Reproduced) -> None:
    plan, result = pictures
    assert [v.claim for v in result.verdicts] == [f"C{k}" for k in range(1, 7)]
    assert all(v.ruling != "open" for v in result.verdicts)
    lib = job_of(result, 0, "lib")
    opened: Any = open_run(plan.out / lib.run)
    assert [*lib.directions] == opened.network.layers
    assert lib.ablation.layers == {}
    inputs, labels = opened.data().all()
    animal = torch.isin(labels, torch.tensor((2, 3, 4, 5, 6, 7)))
    layer = opened.graph.layers[2]
    reader = interbasis.features.FeatureReader(opened.network.double(), layer)
    values = interbasis.features.collect(reader, inputs)
    row = lib.last_hidden
    assert row == lib.directions[layer.name]
    area = interbasis.features.auroc(values, animal)[row.feature].item()
    assert row.auroc == pytest.approx(max(area, 1 - area), rel=1e-12)
    text = (plan.out / "report.md").read_text()
    assert "## Animal against vehicle\n" in text
    assert f"{row.auroc:.3f} (f{row.feature})" in text


def test_a_quick_plan_is_small_and_uses_the_model_that_is_shipped(tmp_path: Path) -> None:
    quick = make_plan("modadd", tmp_path, quick=True)
    assert (quick.seeds, quick.bases, quick.settings.stable) == ((0,), ("lib", "pca"), False)
    task: Any = open_task(quick)
    assert task.checkpoint(0).is_file()
    assert make_plan("modadd", tmp_path, quick=True, seeds="3").seeds == (3,)
    jobs = open_task(make_plan("modadd", tmp_path, seeds="0,1")).jobs()
    assert [f"{job.basis}{job.seed}" for job in jobs] == [
        "lib0", "pca0", "lib1", "pca1", "gib0", "random0", "gib1", "random1",
    ]  # fmt: skip
    assert make_plan("cifar10", tmp_path).settings.nodes is False
    assert quick.command == f"interbasis reproduce modadd --quick --out {tmp_path}"


def test_models_that_are_not_given_are_trained_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from interbasis_studies.training import modadd as training

    trained = []

    def train(recipe: Any, path: Path, report: Any) -> None:
        trained.append(recipe.seed)
        report(recipe.steps, 0.1, 1.0)
        path.parent.mkdir(parents=True)
        path.write_bytes(b"weights")

    monkeypatch.setattr(training, "train", train)
    task: Any = open_task(make_plan("modadd", tmp_path))
    told: list[Any] = []
    for _ in range(2):
        path = task.checkpoint(3, lambda *arguments: told.append(arguments))
    assert path.read_bytes() == b"weights"
    assert trained == [3]
    assert told == [("training, seed 3", 60_000, 60_000)]
    assert task.seeds() == (0, 1, 2, 3, 4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--checkpoints", "{out}/none"], "expected a folder of checkpoints"),
        (["--checkpoints", "{out}"], "has no checkpoint of seed 0; expected modadd-seed0.safetensors"),
        (["--seeds", "0,x"], "comma-separated whole numbers"),
        (["--bases", "lib,ica"], "expected bases among"),
        (["--data", "cifar10"], "--data is for cifar10"),
        (["--report-only"], "nothing to report"),
    ],
)
def test_bad_input_is_one_sentence(tmp_path: Path, cli: Cli, arguments: list[str], message: str) -> None:
    given = [part.format(out=tmp_path) for part in arguments]
    code, _, err = cli("reproduce", "modadd", "--out", tmp_path / "new", *given)
    assert code == 2
    assert message in " ".join(err.split())
    assert not (tmp_path / "new").exists()


def test_the_command_prints_json_and_writes_the_page_where_it_is_wanted(
    additions: Reproduced, cli: Cli, tmp_path: Path
) -> None:
    plan, result = additions
    arguments = ["reproduce", "modadd", "--out", str(plan.out), "--report-only", "--bases", "lib,pca,gib"]
    printed = cli(*arguments, "--page", tmp_path / "docs" / "page.md", "--json").json
    assert [v["here"] for v in printed["verdicts"]] == [v.here for v in result.verdicts]
    assert len(printed["jobs"]) == 6
    assert (tmp_path / "docs" / "page.md").read_text().startswith("# Modular addition")
    check_command(*arguments)


def test_figures_are_shown_and_go_with_the_page(
    additions: Reproduced, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plan, _ = additions

    def draw(pictures: Any, jobs: Any, out: Path) -> tuple[SavedFigure]:
        (out / "edges.svg").write_text(f"<svg>{len(jobs)}</svg>")
        return (SavedFigure(section="Edges required", caption="Edges", file="edges.svg"),)

    with monkeypatch.context() as patch:
        patch.setattr(runner, "draw_figures", draw)
        result = runner.report(plan)
    text = (plan.out / "report.md").read_text()
    assert (
        text.index("## Edges required") < text.index("![Edges](edges.svg)") < text.index("## Nodes required")
    )
    runner.write_page(result, plan, tmp_path / "page.md")
    assert "![Edges](page/edges.svg)" in (tmp_path / "page.md").read_text()
    assert (tmp_path / "page" / "edges.svg").read_text() == "<svg>6</svg>"


def label(*terms: tuple[str, float, tuple[int, int]]) -> FourierLabel:
    return FourierLabel(
        form="sum",
        terms=tuple(
            FourierTerm(text=text, share=share, frequencies=k, phases=(0.0,), amplitudes=(1.0,))
            for text, share, k in terms
        ),
    )


def test_a_feature_has_the_frequency_that_most_of_it_has() -> None:
    assert measures.frequency(label(("cos(3x+3y)", 0.3, (3, 3)), ("cos(3x)", 0.25, (3, 0)))) == 3
    assert measures.frequency(label(("cos(3x+3y)", 0.3, (3, 3)), ("cos(4x)", 0.25, (4, 0)))) is None
    assert measures.frequency(label(("cos(3x+4y)", 0.9, (3, 4)))) is None
    assert measures.frequency(label(("const", 1.0, (0, 0)))) is None


def test_modules_are_compared_with_frequencies() -> None:
    three, four = (label((f"cos({k}x)", 0.9, (k, 0))) for k in (3, 4))
    labels = {"a": [three, three, three, four, four, four]}
    apart = measures.compare_frequencies(labels, {"a": [0, 0, 0, 1, 1, 1]})
    assert apart.own == apart.considered == (3, 4)
    assert apart.agreement == pytest.approx(1)
    mixed = measures.compare_frequencies(labels, {"a": [0, 0, 0, 0, 0, 0]})
    assert (mixed.own, mixed.agreement) == ((), 0)
    split = measures.compare_frequencies(labels, {"a": [0, 0, 0, 1, 2, -1]})
    assert (split.own, split.considered, split.features) == ((3,), (3,), 5)
