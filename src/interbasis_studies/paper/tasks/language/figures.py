"""Figures of a reproduction on a language model."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from interbasis.analysis.stages.ablate import AblationResult
from interbasis.analysis.stages.features import FeaturesResult
from interbasis.analysis.stored_results import load_result, load_tensors
from interbasis.graph.interaction_graph import InteractionGraph
from interbasis.graph.store import load
from interbasis.show.figures import eigenvalue_spectra, interaction_graph, position_profiles
from interbasis.show.figures.style import INK, look, note, panel_grid, plain, styled
from interbasis_studies.paper.figures import Picture
from interbasis_studies.paper.plan import BASIS_LABELS
from interbasis_studies.paper.records import Reproduction
from interbasis_studies.paper.tasks.language.records import CENTRAL_KINDS, LanguageResult

SECTION = "Figures"
FEATURES_PER_LAYER = 24
"""In the picture of a block."""
PROFILES = 8


def pictures(r: Reproduction[LanguageResult], tolerance: float) -> Iterator[Picture]:
    """All figures in the order of the page."""
    jobs = r.by_basis
    graphs = {BASIS_LABELS[job.basis]: load(Path(r.out) / job.run) for job in jobs}
    caption = "Edges required, section by section, with 95 % bootstrap intervals"
    yield Picture(SECTION, "edges_required", caption, required(jobs))
    caption = "Cross-entropy against the edges kept, all masks that were tried"
    yield Picture(SECTION, "curves", caption, curves(jobs, tolerance))
    for job, (label, graph) in zip(jobs, graphs.items(), strict=True):
        folder, name = Path(r.out) / job.run, f"ln1.{job.middle}"
        caption = f"The interaction graph of block {job.middle}, {label}"
        yield Picture(SECTION, f"block_{job.basis}", caption, _block(graph, folder, job.middle))
        result = load_result(folder, FeaturesResult)
        features = result.layers[name].features[:PROFILES] if result and name in result.layers else ()
        if any(feature.positions for feature in features):
            caption = f"The first features at the start of block {job.middle}, {label}"
            yield Picture(SECTION, f"positions_{job.basis}", caption, position_profiles(features, name))
    yield Picture(SECTION, "spectra", "What ranks the features, layer by layer", eigenvalue_spectra(graphs))


def _block(graph: InteractionGraph, folder: Path, middle: int) -> Figure:
    """From the start of the block to the start of what follows it, with the edges that ablations require."""
    names = graph.layer_names
    inside = [k for k, name in enumerate(names) if name.endswith(f".{middle}")]
    first, last = inside[0], min(inside[-1] + 1, len(names) - 1)
    masks = load_tensors(folder, AblationResult)
    needed = {name: masks[f"edge_mask.{name}"] for name in names[first:last] if f"edge_mask.{name}" in masks}
    return interaction_graph(graph, top=FEATURES_PER_LAYER, needed=needed, layers=(first, last))


@styled
def required(jobs: Sequence[LanguageResult]) -> Figure:
    """Per cent of the edges that are required, a panel per kind of section, a series per basis."""
    ablated = {source: jobs[0].kinds[source] for source in jobs[0].ablation.sections}
    kinds = list(dict.fromkeys(ablated.values()))
    figure, panels = panel_grid(len(kinds), across=2, height=2.4)
    for panel, kind in zip(panels, kinds, strict=True):
        names = [source for source, section in ablated.items() if section == kind]
        for number, job in enumerate(jobs):
            sections = job.ablation.sections
            shown = [(place, sections[name]) for place, name in enumerate(names) if name in sections]
            shift = 0.16 * (number - (len(jobs) - 1) / 2)
            heights = [100 * row.count / row.possible for _, row in shown]
            ends = [
                [max(0.0, sign * (100 * row.interval[side] / row.possible - y))
                 for y, (_, row) in zip(heights, shown, strict=True) if row.interval]
                for side, sign in enumerate((-1, 1))
            ]  # fmt: skip
            style = look(number)
            panel.errorbar(
                [place + shift for place, _ in shown], heights, ends, fmt=style["marker"], capsize=2,
                color=style["color"], markersize=4, linewidth=1, label=plain(BASIS_LABELS[job.basis]),
                gid=f"required:{kind}:{job.basis}",
            )  # fmt: skip
        turned = 0 if len(names) <= 6 else 60
        panel.set_xticks(range(len(names)), [plain(name) for name in names], rotation=turned)
        panel.set_xlim(-0.6, len(names) - 0.4)
        panel.set_ylim(bottom=0)
        panel.set_ylabel("edges required, %")
        panel.set_title(plain(kind), fontsize=7.5)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper left", ncols=len(jobs))
    note(
        figure,
        "Per cent of the edges between kept features that have to stay for the cross-entropy to stay within "
        "the tolerance, each section ablated alone. Bars: 95 % bootstrap intervals over the test windows.",
    )
    return figure


@styled
def curves(jobs: Sequence[LanguageResult], tolerance: float) -> Figure:
    """Rise of the cross-entropy as edges go, a panel per attention and MLP section."""
    sections = jobs[0].ablation.sections.values()
    shown = [section for section in sections if jobs[0].kinds[section.source] in CENTRAL_KINDS]
    figure, panels = panel_grid(max(len(shown), 1), across=3, height=1.7)
    for k, (panel, about) in enumerate(zip(panels, shown, strict=False)):
        for number, job in enumerate(jobs):
            row = job.ablation.sections.get(about.source)
            points = [
                (100 * trial.kept / row.possible, trial.value - job.ablation.baseline)
                for trial in row.measured
            ] if row else []  # fmt: skip
            style = look(number) | {"markersize": 2.5, "linewidth": 0.9}
            panel.plot(
                [x for x, _ in points], [y for _, y in points], label=plain(BASIS_LABELS[job.basis]),
                gid=f"curve:{job.basis}", **style,
            )  # fmt: skip
        panel.axhline(tolerance, color=INK, linewidth=0.6, linestyle=(0, (1, 2)), zorder=0)
        panel.set_ylim(min(-0.02, -0.1 * tolerance), 3 * tolerance)
        panel.set_xlim(0, 100)
        panel.yaxis.set_major_locator(MaxNLocator(4))
        panel.set_title(plain(about.name), fontsize=7.5)
        panel.set_xlabel("edges kept, %")
        if k % 3 == 0:
            panel.set_ylabel("cross-entropy rise")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper left", ncols=len(jobs))
    note(figure, "Every mask that was looked at in full; dotted: the tolerance.")
    return figure
