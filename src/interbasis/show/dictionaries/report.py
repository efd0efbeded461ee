"""The report on a graph between dictionaries: what was found, what may be claimed, the numbers."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from interbasis.analysis.dictionaries.ablation import DictionaryAblation
from interbasis.analysis.dictionaries.checks import EdgeChecksResult
from interbasis.analysis.dictionaries.descriptions import DescriptionsResult
from interbasis.analysis.stages.modules import MIN_MODULARITY_Z, ModulesResult
from interbasis.analysis.stored_results import load_result
from interbasis.base.files import check_writable, make_folder, write_text_atomically
from interbasis.base.version import VERSION
from interbasis.dictionaries.graph import DictionaryGraph, load_identified_graph
from interbasis.show.dictionaries.tables import ablation_tables, check_tables, graph_tables
from interbasis.show.html import render
from interbasis.show.report.claims import ReportClaim
from interbasis.show.report.page import PAGE, stylesheet
from interbasis.show.tables import ResultTable

MIN_AGREEMENT = 0.9
"""Sign agreement with interventions from which edges may be said to predict."""


def write_dictionary_report(run: Path, out: Path) -> Path:
    """Write OUT/report.html about a graph between dictionaries on disk.

    Args:
        run: Folder of the graph.
        out: Folder to write to.

    Returns:
        The page's path.

    Raises:
        InterbasisError: The graph cannot be read, or the folder cannot be written to.
    """
    graph, digest = load_identified_graph(run)
    checks = load_result(run, EdgeChecksResult, digest=digest)
    ablation = load_result(run, DictionaryAblation, digest=digest)
    described = load_result(run, DescriptionsResult, digest=digest)
    modules = load_result(run, ModulesResult, digest=digest)
    parts = [*graph_tables(graph.header)]
    parts += [] if ablation is None else ablation_tables(ablation)
    parts += [] if checks is None else check_tables(checks)
    claims = [
        *_about_edges(graph, checks), *_about_ablation(ablation), *_about_features(described, modules)
    ]  # fmt: skip
    check_writable(out)
    make_folder(out)
    html = render(
        (Path(__file__).parent / "report.html").read_text(encoding="utf-8"),
        title=f"Features of {len(graph.places)} dictionaries of {graph.provenance.model or 'a network'}",
        css=stylesheet(),
        version=VERSION,
        date=datetime.now(UTC).strftime("%Y-%m-%d"),
        claims=claims,
        tables=[part for part in parts if isinstance(part, ResultTable)],
        provenance=_provenance(graph),
        command=f"interbasis build --config {run} --out NEW_FOLDER" if graph.provenance.request else "",
    )
    write_text_atomically(out / PAGE, html)
    return out / PAGE


def _about_edges(graph: DictionaryGraph, checks: EdgeChecksResult | None) -> Iterator[ReportClaim]:
    for pair in graph.header.pairs:
        yield ReportClaim(
            True,
            f"Between the features of {pair.source} and {pair.target}, {pair.stored:,} of {pair.nonzero:,} "
            f"edges hold {pair.stored_share:.1%} of Σ Ê².",
            f"Measured over {pair.tokens:,} tokens.",
        )
        yield ReportClaim(
            False,
            f"The features of {pair.source} explain those of {pair.target}.",
            f"They hold {pair.feature_share:.0%} of Σ Ê² over all sources; the rest is the dictionary's "
            "error, what is carried past it, and the constant.",
        )
    if checks is None:
        yield ReportClaim(
            False, "An edge predicts what happens when its source is taken out.",
            "This was not checked; run interbasis dictionary check on other data than those of the build.",
        )  # fmt: skip
    for checked in () if checks is None else checks.pairs:
        measured = checked.attributions
        yield ReportClaim(
            measured.sign_agreement >= MIN_AGREEMENT,
            f"The strongest edges from {checked.source} to {checked.target} predict single interventions.",
            f"Of {checked.edges} edges, {measured.sign_agreement:.0%} have the sign of the measured change "
            f"(rank correlation {measured.correlation:.2f}); {MIN_AGREEMENT:.0%} are asked for.",
        )


def _about_ablation(ablation: DictionaryAblation | None) -> Iterator[ReportClaim]:
    if ablation is None:
        yield ReportClaim(
            False, "Few edges suffice.", "No edges were taken away; run interbasis ablate."
        )  # fmt: skip
        return
    for pair in ablation.pairs.values():
        if pair.count is None:
            yield ReportClaim(
                False, f"Few edges suffice from {pair.source} to {pair.target}.",
                "Not even all stored edges keep the metric within the tolerance.",
            )  # fmt: skip
            continue
        random = "never passes" if pair.random_count is None else f"needs {pair.random_count:,}"
        yield ReportClaim(
            True,
            f"{pair.count:,} of {pair.stored:,} stored edges from {pair.source} to {pair.target} keep the "
            f"{ablation.metric.replace('_', '-')} within {ablation.tolerance:g}.",
            f"On {ablation.data.samples:,} samples, dropped edges at their mean; a random order {random}.",
        )
    yield ReportClaim(
        False, "The network needs nothing but these edges.",
        "Error, carried streams and constant stay, pairs were ablated one at a time, and which features are "
        "active was not computed from the edges.",
    )  # fmt: skip


def _about_features(
    described: DescriptionsResult | None, modules: ModulesResult | None
) -> Iterator[ReportClaim]:
    for layer in () if described is None else described.layers:
        yield ReportClaim(
            True,
            f"{layer.described:,} of {layer.active:,} active features of {layer.place} are active at a short "
            "list of tokens.",
            "Precision and recall are those on samples that the lists were not chosen on.",
        )
    yield ReportClaim(
        False, "These are the features that the network computes with.",
        "A dictionary is one way to write activations as a sum; another dictionary gives another graph.",
    )  # fmt: skip
    if modules is not None and modules.null is not None:
        yield ReportClaim(
            modules.null.z >= MIN_MODULARITY_Z,
            f"The features form {modules.modules} modules.",
            f"The modularity lies {modules.null.z:.1f} standard deviations above that of rewired graphs; "
            f"{MIN_MODULARITY_Z:g} are asked for.",
        )


def _provenance(graph: DictionaryGraph) -> ResultTable:
    origin = graph.provenance
    rows = [
        ("model", origin.model or origin.family),
        ("SHA-256 of the weights", origin.model_fingerprint[:16]),
        ("samples", f"{origin.samples['data']:,}"),
        ("SHA-256 of the data", origin.data_fingerprints["data"][:16]),
        ("settings", graph.header.config.to_json()),
        *((f"dictionary of {layer.place}", f"{layer.name or layer.path} {layer.digest[:16]}")
          for layer in graph.header.layers),
        *((f"version of {name}", version) for name, version in origin.versions.items()),
    ]  # fmt: skip
    return ResultTable.from_cells("Origin", ("", "value"), rows, text=("value",))
