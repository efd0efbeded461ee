"""Benchmarks on very small shapes."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from interbasis.base.errors import InterbasisError
from interbasis.numerics.integration import rule
from interbasis_studies.bench import measures, processes, run
from interbasis_studies.bench.autograd import batched, fused, looped, looped_edges
from interbasis_studies.bench.compare import compare, read_result
from interbasis_studies.bench.measures import exponent, grown, least_time, ratio
from interbasis_studies.bench.page import write_page
from interbasis_studies.bench.records import BenchComparison, BenchResult, Measure
from interbasis_studies.bench.shapes import Shape

TINY = Shape(12, 24, 2, positions=6, samples=2)
TURNED = Shape(12, 24, 2, 1, positions=6, samples=2)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[BenchResult, Any]:
    """The whole benchmark with shapes that take no time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "QUICK", {"one": TINY, "other": TURNED})
        patch.setattr(measures, "SMALL", TINY)
        patch.setattr(measures, "FACTORS", {"tokens": (1, 2), "depth": (1, 2)})
        patch.setattr(run, "peak_memory", lambda shape: 10**9)
        patch.setattr(measures, "ROWS", 2)
        patch.setattr(measures, "POSITIONS", 3)
        rotary_ratios = measures.rotary_ratios
        patch.setattr(measures, "rotary_ratios", lambda w, c, t, r: rotary_ratios(64, 8, 16, 1))
        folder = tmp_path_factory.mktemp("bench")
        told = []
        result = run.run(folder, quick=True, scaling=False, progress=lambda *a: told.append(a))
    assert told[-1][1] == told[-1][2]
    return result, folder


def test_everything_is_measured(measured: tuple[BenchResult, Any]) -> None:
    result, folder = measured
    assert result.quick
    kinds = {name.split("/")[0] for name in result.ratios}
    assert kinds == {"phases", "autograd", "dictionaries", "rotary over plain"}
    assert {"dictionaries/one/block", "dictionaries/other/MLP"} <= result.ratios.keys()
    assert {"phases/one/edges", "autograd/other/attention basis, looped"} <= result.ratios.keys()
    assert "autograd/one/attention edges from 3 positions, looped" in result.ratios
    assert "phases/one/norms and MLPs, all data" in result.ratios
    assert all(measure.value > 0 for name, measure in result.ratios.items() if "survey" not in name)
    assert set(result.sweeps) == {"tokens", "depth"}
    assert result.sweeps["depth"].sizes == (1, 2)
    assert not (folder / ".resume").exists()


def test_the_page_and_the_record(measured: tuple[BenchResult, Any], tmp_path: Path) -> None:
    result, _ = measured
    (tmp_path / "bench.json").write_text(result.to_json())
    assert read_result(tmp_path / "bench.json") == result
    page = write_page(tmp_path, result, compare(result, result)).read_text()
    assert "none changed beyond noise" in page
    assert (tmp_path / "bench-sweeps.svg").is_file()
    assert page.count("| one |") >= 6


def test_an_interrupted_benchmark_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def part(name: str, shape: Any, repeat: int) -> dict[Any, Any]:
        calls.append(name)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return {f"phases/{name}/edges": Measure(value=float(len(calls)))}

    monkeypatch.setattr(run, "QUICK", {"one": TINY, "other": TURNED})
    monkeypatch.setattr(measures, "phase_ratios", part)
    monkeypatch.setattr(measures, "autograd_ratios", lambda *a: {})
    monkeypatch.setattr(measures, "rotary_ratios", lambda *a: {})
    monkeypatch.setattr(run, "peak_memory", lambda shape: 1)
    with pytest.raises(KeyboardInterrupt):
        run.run(tmp_path, quick=True, scaling=False)
    result = run.run(tmp_path, quick=True, scaling=False)
    assert calls == ["one", "other", "other"]
    assert result.ratios["phases/one/edges"].value == 1


def test_slowdowns_beyond_noise_are_flagged(measured: tuple[BenchResult, Any]) -> None:
    result, _ = measured
    ratios = {
        "phases/a/edges": Measure(value=10, spread=0.05),
        "autograd/a/basis": Measure(value=100, spread=0.0),
        "phases/a/noisy": Measure(value=1, spread=0.5),
    }
    before = result.model_copy(update={"ratios": ratios})

    def after(**values: Any) -> BenchComparison:
        changed = {
            n: m.model_copy(update={"value": values.get(n.split("/")[-1], m.value)})
            for n, m in ratios.items()
        }
        return compare(before, result.model_copy(update={"ratios": changed}))

    assert after().changes == ()
    assert after(noisy=3.0).changes == ()
    assert after(edges=14.0).changes == ()  # 1 + 0.25 + 3 · 0.1 = 1.55
    assert [change.name for change in after(edges=16.0).slower] == ["phases/a/edges"]
    assert [change.slower for change in after(basis=50.0).changes] == [True]
    assert [change.slower for change in after(basis=200.0).changes] == [False]


def test_a_foreign_baseline_is_refused(measured: tuple[BenchResult, Any], tmp_path: Path) -> None:
    with pytest.raises(InterbasisError, match="run interbasis bench first"):
        read_result(tmp_path / "none.json")
    (tmp_path / "odd.json").write_text("{}")
    with pytest.raises(InterbasisError, match="not a result of interbasis"):
        read_result(tmp_path / "odd.json")
    values = json.loads(measured[0].to_json()) | {"version": 99}
    (tmp_path / "odd.json").write_text(json.dumps(values))
    with pytest.raises(InterbasisError, match="by version 99"):
        read_result(tmp_path / "odd.json")


def test_exponents_of_known_powers() -> None:
    assert exponent([1, 2, 4], [3.0, 24.0, 192.0]) == pytest.approx(3)
    assert grown(TINY, "context", 2)[1].tokens == TINY.tokens
    assert grown(TINY, "width", 2) == (24, Shape(24, 48, 2, positions=6, samples=2))


def test_ratios_carry_both_spreads() -> None:
    one, other = least_time([2.0, 2.2, 2.4]), least_time([1.0])
    assert one.value == 2.0
    assert one.spread == pytest.approx(0.1)
    assert ratio(one, other).value == 2
    assert ratio(one, other).spread == pytest.approx(0.1)


def test_references_agree_with_the_closed_form() -> None:
    """What is timed beside each other is the same quantity, where positions do not mix."""
    network, tokens = TINY.network().double(), TINY.data()
    _, section, f = next(x for x in measures._sections(network, tokens) if x[0] == "MLP")
    transform = torch.linalg.qr(torch.randn(section.target.width, section.target.width, dtype=torch.float64))[
        0
    ]
    per_token = f.flatten(0, 1)[:, None]
    loop = looped(section, transform, per_token)
    batch = batched(section, transform, per_token, 4)
    closed = measures._basis(section, transform, f)
    first = section.source.first_coordinate
    wanted = loop[first:, first:] / len(per_token)
    assert torch.allclose(batch, loop)
    assert torch.allclose(closed, wanted, rtol=1e-9, atol=1e-9 * wanted.abs().max().item())


@pytest.mark.parametrize("shape", [TINY, TURNED])
def test_references_of_edges_agree_with_the_closed_form(shape: Shape) -> None:
    """One output position has one sign, whose square is 1."""
    network, tokens = shape.network().double(), shape.data()
    _, section, f = next(x for x in measures._sections(network, tokens) if x[0] == "attention")
    for at in (0, 3, 5):
        found = looped_edges(fused(section), f[:1], torch.tensor([at]))
        block = section.core.attributions(
            f[:1] @ section.read.T, f[:1], section.read, slice(at, at + 1), rule("gradient")
        )
        wanted = (section.write @ block[:, 0] + section.skip * f[0, at]).square()
        assert torch.allclose(found, wanted, rtol=1e-9, atol=1e-12)
    torch.manual_seed(1)
    everywhere = looped_edges(fused(section), f)
    torch.manual_seed(1)
    chosen = looped_edges(fused(section), f, torch.arange(f.shape[1]))
    assert torch.allclose(chosen, everywhere, rtol=1e-9, atol=1e-12)


def test_peak_memory_in_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    assert processes.peak_memory(TINY) > 10**8
    monkeypatch.setattr(processes, "PEAK", "raise SystemExit('no memory')")
    with pytest.raises(InterbasisError, match="ended with"):
        processes.peak_memory(TINY)


def test_results_are_typed(measured: tuple[BenchResult, Any]) -> None:
    assert BenchResult.model_validate_json(measured[0].to_json()) == measured[0]


def test_phases_of_a_build_to_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measures, "ERROR_TOKENS", 240)
    ratios = measures.error_ratios("one", TINY)
    phases = [ratios[f"at 5% error/one/{phase}"].value for phase in measures.PHASES]
    assert ratios["at 5% error/one/all phases"].value == pytest.approx(sum(phases))
    assert ratios["at 5% error/one/trial"].value > 0
