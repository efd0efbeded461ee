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
from interbasis.show.report.page import PAGE, stylesheet
from interbasis.show.sentences import ClaimTexts, ReportClaim
from interbasis.show.tables import ResultTable

MIN_AGREEMENT = 0.9
"""Sign agreement with interventions from which edges may be said to predict."""
TEXTS = ClaimTexts("dictionaries/claims.toml")


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
        yield TEXTS.yes("stored_edges", "measured", pair=pair)
        yield TEXTS.no("explained", "other_sources", pair=pair)
    if checks is None:
        yield TEXTS.no("edges_predict", "not_checked")
    for checked in () if checks is None else checks.pairs:
        measured, limit = checked.attributions, MIN_AGREEMENT
        holds = measured.sign_agreement >= limit
        yield TEXTS.claim(holds, "strongest_predict", "signs", pair=checked, measured=measured, limit=limit)


def _about_ablation(ablation: DictionaryAblation | None) -> Iterator[ReportClaim]:
    if ablation is None:
        yield TEXTS.no("few_edges", "not_ablated")
        return
    for pair in ablation.pairs.values():
        if pair.count is None:
            yield TEXTS.no("few_edges_of_pair", "none", pair=pair)
            continue
        random = "never passes" if pair.random_count is None else f"needs {pair.random_count:,}"
        values = {"pair": pair, "ablation": ablation, "metric": ablation.metric.replace("_", "-")}
        yield TEXTS.yes("edges_required", "measured", random=random, **values)
    yield TEXTS.no("nothing_else", "one_pair")


def _about_features(
    described: DescriptionsResult | None, modules: ModulesResult | None
) -> Iterator[ReportClaim]:
    for layer in () if described is None else described.layers:
        yield TEXTS.yes("described", "tested", layer=layer)
    yield TEXTS.no("used_features", "another")
    if modules is not None and modules.null is not None:
        limit = MIN_MODULARITY_Z
        yield TEXTS.claim(modules.null.z >= limit, "modules", "rewired", modules=modules, limit=limit)


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
