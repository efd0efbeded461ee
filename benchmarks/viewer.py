"""The page at its largest: 50 layers × 100 features × 100,000 edges, in a real Chromium.

First paint is the time from the start of the navigation to the end of the frame in which the edges are on
the canvas. A redraw is the time from a slider's input event to the end of the frame after it; the slider goes
from few edges to all of them and back.
"""

import statistics
import sys
import tempfile
from pathlib import Path

import torch

from common import machine, report
from interbasis.analysis.stages.modules import ModulesResult
from interbasis.analysis.stored_results import save_result
from interbasis.graph.interaction_graph import InteractionGraph, Provenance
from interbasis.graph.layer_basis import LayerBasis
from interbasis.graph.settings import BuildConfig
from interbasis.show.viewer.page import write_page

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from show.viewer.chromium import browser

LAYERS, FEATURES = 50, 100
REDRAW = """(at) => new Promise((done) => {
  const slider = document.getElementById("slider-count");
  slider.value = at;
  const start = performance.now();
  slider.dispatchEvent(new Event("input"));
  requestAnimationFrame(() => setTimeout(() => done(performance.now() - start)));
})"""
WATCH = """const look = () => window.interbasis?.parts.every(({ view }) => view.sections)
  ? setTimeout(() => (window.painted = performance.now())) : requestAnimationFrame(look);
look();"""
"""Put into the page before anything else: notes when the frame with the edges is done."""
PAINTED = """() => new Promise((done) => {
  const look = () => (window.painted ? done(window.painted) : setTimeout(look, 20));
  look();
})"""


def deep_graph(layers: int = LAYERS, features: int = FEATURES) -> InteractionGraph:
    """A graph of this size with edges that fall off as real ones do (log-normal, few strong)."""
    generator = torch.Generator().manual_seed(0)
    size = features + 1
    ranking = torch.logspace(3, -3, size, dtype=torch.float64)
    bases = [
        LayerBasis(f"mlp_in.{k}", torch.eye(size), torch.eye(size), eigenvalues=ranking)
        for k in range(layers)
    ]
    edges = [(2 * torch.randn(size, size, generator=generator)).exp().double() for _ in range(layers - 1)]
    provenance = Provenance(
        family="mlp", model="50 layers", model_fingerprint="0" * 64, widths=(size,) * layers,
        data_fingerprints={}, samples={"data": 1}, versions={}, timings={"all": 0.0},
    )  # fmt: skip
    return InteractionGraph(bases, edges, BuildConfig(), provenance)


def eight_modules() -> ModulesResult:
    """Eight modules, so that an eighth of the edges is coloured."""
    assignment = (-1, *(feature % 8 for feature in range(FEATURES)))
    return ModulesResult(
        resolution=1.0, seed=0, modularity=0.0, sizes=(LAYERS * FEATURES // 8,) * 8, epsilons={},
        epsilons_from_ablation=False, layers={f"mlp_in.{k}": assignment for k in range(LAYERS)},
        agreement_over_seeds=None, agreement_over_resolutions=(), null=None, leidenalg=None, cuts=(),
    )  # fmt: skip


def measure(file: Path, view: str, width: int) -> dict[str, object]:
    with browser() as chromium:
        page = chromium.new_page(viewport={"width": width, "height": 900})
        page.add_init_script(WATCH)
        page.goto(f"{file.as_uri()}#by=count&nodes=100&output=show&count=2000{view}")
        first = page.evaluate(PAINTED)
        drawn = page.evaluate("window.interbasis.parts[0].view.sections.reduce((n, s) => n + s.size, 0)")
        seen = page.evaluate(
            "(() => { const v = window.interbasis.parts[0].view; "
            "return v.sections.filter((s) => s.left < v.scroll.clientWidth).length; })()"
        )
        moves = [*range(0, 1001, 50), *range(1000, -1, -50)]
        times = [page.evaluate(REDRAW, at) for at in moves]
        full = [page.evaluate(REDRAW, at) for at in [999, 1000] * 10]
        page.close()
    return {
        "edges on the page": drawn,
        "sections in sight": seen,
        "first paint, seconds": first / 1000,
        "slider move, median milliseconds": statistics.median(times),
        "slider move, slowest milliseconds": max(times),
        "slider move with all edges, median milliseconds": statistics.median(full),
    }


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = deep_graph().save(Path(folder) / "run")
        save_result(run, eight_modules())
        file = write_page([run], Path(folder) / "page.html")
        size = file.stat().st_size / 1e6
        report(
            "viewer, 1280 px wide",
            machine() | {"page, megabytes": size} | measure(file, "&colour=none", 1280),
        )
        report("viewer, 1280 px wide, modules as colours", measure(file, "&colour=module", 1280))
        report("viewer, all 49 sections in sight (4200 px)", measure(file, "&colour=none", 4200))


if __name__ == "__main__":
    main()
