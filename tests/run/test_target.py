"""Builds to an error or a time: a trial chooses, rounds go on until it is reached, and can be replayed."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import interbasis
from command_line import Cli
from interbasis import build
from interbasis.analysis.stages.ablate import AblationResult
from interbasis.analysis.stored_results import load_result
from interbasis.base.errors import InterbasisError
from interbasis.graph import store
from interbasis.graph.costs import Cost, Pilot, Scheme
from interbasis.graph.interaction_graph import InteractionGraph
from interbasis.graph.settings import BuildTarget
from interbasis.graph.store import graph_digest, load
from interbasis.network.network import Network
from interbasis.run import target as targets
from interbasis.show.viewer.payload import run_payload

pytest.importorskip("transformers")
from tiny_models import random_model, tokens

SAMPLING = (
    "jacobian_queries",
    "jacobian_samples",
    "edge_group",
    "edge_sources",
    "edge_positions",
    "edge_samples",
)


def scheme_of(graph: InteractionGraph) -> dict[str, Any]:
    return {name: getattr(graph.config, name) for name in SAMPLING}


@pytest.fixture(scope="module")
def network() -> Network:
    return interbasis.from_hf(random_model("gpt2"))


@pytest.mark.parametrize("error", [pytest.param(0.2, marks=pytest.mark.slow), 0.04])
def test_the_error_is_reached_and_the_scheme_gives_the_same_bits(network: Network, error: float) -> None:
    graph = build(network, tokens(120, 8), error=error).graph
    precision = graph.provenance.precision
    assert precision.error == error
    assert precision.reached <= error
    assert set(precision.layers) == set(graph.layer_names)
    assert set(precision.sections) == set(graph.section_names)
    if graph.config.sampled:
        again = build(network, tokens(120, 8), **scheme_of(graph)).graph
        assert all(map(torch.equal, graph.edges, again.edges))
        assert all(
            torch.equal(a.transform, b.transform) for a, b in zip(graph.layers, again.layers, strict=True)
        )


def test_sections_with_other_numbers_of_positions_try_the_same_schemes() -> None:
    torch.manual_seed(0)
    module = torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3, padding=1), torch.nn.ReLU(), torch.nn.MaxPool2d(2), torch.nn.Conv2d(4, 5, 3),
        torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(5, 3),
    )  # fmt: skip
    pictures = torch.rand(100, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    graph = build(interbasis.from_torch(module, pictures[:1]), pictures, error=0.1).graph
    assert graph.config.sampled
    assert 0 < graph.provenance.precision.reached <= 0.1


def test_a_time_is_turned_into_samples(network: Network) -> None:
    graph = build(network, tokens(120, 8), time="20s").graph
    assert graph.provenance.precision.time == 20
    assert graph.provenance.precision.error is None
    assert sum(graph.provenance.timings.values()) < 25


def test_a_time_that_does_not_suffice_is_refused_and_leaves_nothing_behind(
    network: Network, tmp_path: Path
) -> None:
    """The trial alone takes longer than a hundredth of a second."""
    with pytest.raises(InterbasisError, match=r"0 s .* 15 node layers.*--time \d+s.*--layers"):
        build(network, tokens(120, 8), time=0.01, resume=tmp_path / "run")
    run = build(network, tokens(120, 8), error=0.2, resume=tmp_path / "run")
    assert run.graph.config.sampled


def test_short_builds_and_other_models_are_exact_unless_asked(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(targets, "run_pilot", lambda *_: pytest.fail("no trial is needed"))
    assert not build(network, tokens(6, 8)).graph.config.sampled
    assert not build(network, tokens(6, 8), exact=True).graph.config.sampled
    assert not build(network, tokens(1, 8), error=0.05, norm_limit=0).graph.config.sampled
    module = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.ReLU(), torch.nn.Linear(5, 3))
    assert not build(interbasis.from_torch(module), torch.randn(64, 4)).graph.config.sampled


@pytest.mark.slow
def test_long_builds_of_language_models_are_sampled_unless_exact(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(targets, "SHORT_SECONDS", 0.0)
    graph = build(network, tokens(120, 8)).graph
    assert graph.provenance.precision.error == targets.DEFAULT_ERROR or not graph.config.sampled
    assert not build(network, tokens(120, 8), exact=True).graph.config.sampled


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"error": 0.05, "exact": True}, "error and exact cannot be combined"),
        ({"time": 5, "edge_group": "positions"}, "time and edge_group cannot be combined"),
        ({"error": 0.05, "time": 5}, "error and time cannot be combined"),
        ({"error": "5 percent"}, "expected a fraction such as 5% or 0.05"),
        ({"error": 0}, "the setting error cannot be 0"),
        ({"time": "soon"}, "expected a time such as 90s, 10min or 2h"),
        ({"edge_samples": [8, 4]}, "expected totals after each round"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(
    network: Network, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(InterbasisError, match=message):
        build(network, tokens(6, 8), **settings)


def test_texts_of_errors_and_times() -> None:
    assert BuildTarget(error="5%").error == pytest.approx(0.05)
    assert BuildTarget(error="0.05").error == 0.05
    assert [BuildTarget(time=text).time for text in ("90s", "10min", "2h", "30")] == [90, 600, 7200, 30]


def scheme(seconds: float, variance: float, within: float = 0.0, **settings: Any) -> Scheme:
    cost = Cost(wall=seconds, processor=seconds)
    return Scheme(settings=settings, seconds=cost, variance=variance, within=within)


def pilot_with(
    *edges: Scheme,
    samples: int = 400,
    statistics: Scheme | None = None,
    jacobian: Scheme | None = None,
) -> Pilot:
    zero, statistics = Cost(), statistics or scheme(0, 0)
    return Pilot(
        samples=samples, jacobian_samples=samples, edge_samples=samples, positions=8, forward=zero,
        statistics=statistics, least_statistics=40, fixed=zero,
        jacobians=(scheme(1, 0), jacobian or scheme(1, 0.04)),
        edges=edges, seconds=zero, clock="processor",
    )  # fmt: skip


def test_samples_of_a_scheme_are_as_many_as_its_error_needs() -> None:
    for within in (0.0, 0.1, 0.3):
        tried = scheme(1.0, 0.3, within)
        for error in (0.02, 0.05, 0.1):
            for total in (1000, 30):  # of 30, they are drawn again where signs leave an error
                count = tried.samples(error, total)
                if count > 16:
                    assert tried.error(count, total) <= error < tried.error(count - 1, total)
                assert count <= total or within > 0
    assert scheme(1.0, 0.3).error(1000, 1000) == 0


def test_the_cheapest_schemes_that_reach_the_error_are_chosen() -> None:
    pilot = pilot_with(
        scheme(10, 0), scheme(1, 0.5, 0.5, edge_sources=1), scheme(1.5, 0.25, 0.25, edge_sources=2)
    )
    chosen = pilot.choice(0.05)
    assert chosen.settings["edge_sources"] == 2
    assert chosen.settings["edge_samples"] == (100,)
    assert chosen.settings["jacobian_samples"] == math.ceil(0.04 / (0.0025 + 0.0001))
    assert pilot.choice(0.001).settings["edge_samples"] is None  # cannot be reached otherwise
    again = pilot_with(scheme(10, 0), scheme(1, 1.5, 1.5, edge_sources=1), scheme(8, 0.3, edge_sources=2))
    assert again.choice(0.05).settings["edge_samples"] == (600,)  # of 400, at less than all of them exactly
    assert (
        pilot_with(scheme(1, 0), jacobian=scheme(0.1, 0.9, 0.9)).choice(0.05).settings["jacobian_samples"]
        is None
    )
    assert pilot.choice(0.0).exact
    assert pilot.choice_within(1e6).exact
    within = pilot.choice_within(200)
    assert within.seconds.wall <= 200
    assert pilot.choice(0.9 * within.edge_error).seconds.wall > 200


def test_statistics_are_drawn_where_that_saves_time_and_leaves_room_for_the_jacobians() -> None:
    pilot = pilot_with(samples=4000, statistics=scheme(1, 0.1))
    chosen = pilot.choice(0.1)
    assert chosen.settings["statistics_samples"] == math.ceil(0.1 / (0.05**2 + 0.1 / 4000)) < 4000
    assert chosen.settings["jacobian_samples"] == 16  # of those drawn for the statistics
    assert chosen.jacobian_error <= 0.1
    assert chosen.seconds.wall < 1000 < pilot.choice(0.0).seconds.wall
    assert pilot.choice(0.9).settings["statistics_samples"] == 40  # the least
    cheap = pilot_with(samples=4000, statistics=scheme(1e-6, 1e4))
    assert cheap.choice(0.1).settings["statistics_samples"] is None
    within = pilot.choice_within(600)
    assert within.seconds.wall <= 600
    assert within.settings["statistics_samples"] < 600


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("target")
    random_model("gpt2", torch.float32).save_pretrained(folder / "model")
    tokens(120, 8).numpy().astype(np.uint16).tofile(folder / "tokens.uint16")
    return folder


def command(folder: Path, *options: Any) -> list[Any]:
    return [
        "build", f"hf:{folder / 'model'}", "--data", f"tokens:{folder / 'tokens.uint16'},context=8", *options
    ]  # fmt: skip


def shown_text(cli: Cli, run: Path) -> str:
    return " ".join(cli("show", run).out.split())


def test_a_run_is_replayed_opened_and_refined(folder: Path, cli: Cli) -> None:
    run = folder / "run"
    assert cli(*command(folder, "--error", "20%", "--out", run)).code == 0
    first = graph_digest(run)
    assert cli("build", "--config", run, "--out", folder / "again").code == 0
    assert graph_digest(folder / "again") == first
    assert cli(*command(folder, "--error", "20%", "--out", run)).code == 0
    assert graph_digest(run) == first
    assert "Asked for: 20.00%" in " ".join(cli("show", run).out.split())
    assert cli("report", run, "--out", folder / "report").code == 0
    assert run_payload(run).about.settings["edge_samples"] is not None
    assert cli("ablate", run, "--metric", "cross_entropy", "--tolerance", "10").code == 0
    assert load_result(run, AblationResult) is not None
    assert cli("build", "--config", run, "--error", "3%", "--out", run).code == 0
    assert graph_digest(run) != first
    assert load(run).provenance.precision.reached <= 0.03
    assert load_result(run, AblationResult) is None  # that of the older graph is not shown
    assert "of this run: ablate" in shown_text(cli, run)
    assert run_payload(run).outdated == ("ablate",)
    assert cli("report", run, "--out", folder / "report").code == 0
    assert "ablate were measured on" in (folder / "report/report.html").read_text()
    assert cli("ablate", run, "--metric", "cross_entropy", "--tolerance", "10").code == 0
    assert "Outdated" not in shown_text(cli, run)


def test_an_interrupted_round_is_a_run_and_goes_on_to_the_same_bits(
    folder: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = folder / "rounds"
    monkeypatch.setattr("interbasis.lib.goal.MARGIN", 0.8)  # more rounds
    too_few = scheme(1, 0.01, edge_group="positions", edge_sources=4)
    monkeypatch.setattr(targets, "run_pilot", lambda *_: pilot_with(scheme(10, 0), too_few, samples=120))
    save, saved = store.save, []

    def interrupted(*arguments: Any, **options: Any) -> str:
        digest = save(*arguments, **options)
        saved.append(digest)
        if options.get("unfinished"):  # the page of a running build
            assert "The build has not ended" in run_payload(run).about.precision
        if options.get("unfinished") and len(saved) == 1:
            raise KeyboardInterrupt
        return digest

    monkeypatch.setattr(store, "save", interrupted)
    settings = command(folder, "--error", "6%", "--out", run)
    assert cli(*settings).code == 130
    kept = load(run)
    assert graph_digest(run) == saved[0]
    assert kept.provenance.precision.reached > 0.06
    assert "The build has not ended" in shown_text(cli, run)
    monkeypatch.setattr(targets, "run_pilot", lambda *_: pytest.fail("the trial is not repeated"))
    assert cli(*settings).code == 0
    graph = load(run)
    assert graph.provenance.precision.reached <= 0.06
    assert "The build has not ended" not in shown_text(cli, run)
    assert cli("build", "--config", run, "--out", folder / "rounds again").code == 0
    assert graph_digest(folder / "rounds again") == graph_digest(run)
