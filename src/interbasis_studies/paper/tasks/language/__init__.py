"""Section 3.3, language models: claims L1 to L5 on one model, a job per basis."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from interbasis.analysis.ablation.records import EdgesRequired
from interbasis.analysis.stages import features
from interbasis.analysis.stages.ablate import AblateRequest
from interbasis.analysis.stages.features import ExamplesResult, FeaturesRequest, FeaturesResult
from interbasis.base.errors import InterbasisError
from interbasis.base.progress import Progress
from interbasis.data.samples import Samples, Split
from interbasis.graph.named_models import Model, first_samples, open_model
from interbasis.graph.settings import BuildRequest
from interbasis.network.network import Network
from interbasis.run.run import Run
from interbasis.show.tables import Cell, markdown_table, percent
from interbasis_studies.paper.claims import Verdict
from interbasis_studies.paper.figures import Picture
from interbasis_studies.paper.jobs import Job, JobClock, ablate_missing, common_result
from interbasis_studies.paper.plan import BASIS_LABELS, CENTRAL_BASES, LanguageSettings, Plan
from interbasis_studies.paper.records import ComparedEdges, Reproduction
from interbasis_studies.paper.task import Task
from interbasis_studies.paper.tasks.language import claims, measures
from interbasis_studies.paper.tasks.language.measures import LISTED_FEATURES
from interbasis_studies.paper.tasks.language.records import CENTRAL_KINDS, Kind, LanguageResult, TokensUsed

FEATURES = FeaturesRequest(top=16, ends=4, bands=2, per_band=2)
MAX_DESCRIBED_TOKENS = 65_536
"""Tokens of the training set that features are described from."""

TITLES = {
    "tinystories": "A TinyStories model, reproduced (paper 3.3; claims L1 to L5)",
    "gpt2": "A language model beside the paper's GPT2-small (paper 3.3; claims L1 to L5)",
}
KIND_TITLES: dict[Kind, str] = {
    "attention": "attention", "MLP": "MLP", "norm in": "layer norm, variance",
    "norm out": "layer norm, division", "other": "other",
}  # fmt: skip
R = Reproduction[LanguageResult]


class LanguageModel(Task[LanguageResult]):
    """One language model in several bases."""

    quick_form = "few tokens, and edges required in the middle block alone."
    result_type = LanguageResult

    def __init__(self, plan: Plan):
        super().__init__(plan)
        self.title = TITLES[plan.task]  # type: ignore[misc]

    @property
    def settings(self) -> LanguageSettings:
        assert isinstance(self.plan.settings, LanguageSettings)
        return self.plan.settings

    def jobs(self) -> list[Job]:
        return [Job(basis, self.plan.out / basis) for basis in self.plan.bases]

    def build_request(self, job: Job, progress: Progress) -> BuildRequest:
        model = open_model(self.plan.model)
        return BuildRequest.validated(
            model=self.plan.model,
            data=self._first_tokens(model, self.settings.tokens).spec,
            edge_data=self._first_tokens(model, self.settings.edge_tokens).spec,
            basis=job.basis,
            skip_positions=self.settings.skip_positions,
            norm_limit=self.settings.norm_limit,
            **self.settings.sampling,
        )

    def measure(self, job: Job, opened: Run, clock: JobClock) -> LanguageResult:
        assert opened.model is not None
        test = self._first_tokens(opened.model, self.settings.test_tokens, "test")
        described = self._first_tokens(opened.model, min(self.settings.tokens, MAX_DESCRIBED_TOKENS))
        opened = replace(opened, train_data=described, test_data=test)
        for kind, names in self._sections(opened.network).items():
            request = AblateRequest(
                metric="cross_entropy", tolerance=self.settings.tolerance, sections=tuple(names),
                stable=False, intervals=True,
            )  # fmt: skip
            if ablate_missing(opened, request):
                clock.stop(f"edges required, {kind}")
        if opened.stored(FeaturesResult) is None or opened.stored(ExamplesResult) is None:
            features.run(opened, FEATURES)
            clock.stop("features")
        common = common_result(job, opened, self.settings)
        kinds, graph, positions = measures.kinds(opened.network), opened.graph, test[0][0].shape[-1]
        samples, middle = graph.provenance.samples, measures.middle_block(opened.network)
        return LanguageResult(
            **dict(common),
            dtype=graph.config.dtype,
            tokens=TokensUsed(
                basis=samples["data"] * positions,
                edges=samples["edge_data"] * positions,
                test=len(test) * positions,
                test_windows=len(test),
                described=min(samples["data"], -(-MAX_DESCRIBED_TOKENS // positions)) * positions,
            ),
            middle=middle,
            kinds=kinds,
            combined=measures.combined_ablations(opened, kinds, common.ablation, clock),
            node_layers=measures.node_layers(opened),
            norms=measures.layer_norms(graph, kinds),
            reach=measures.reach(opened, kinds),
            profiles=measures.profiles(opened, f"ln1.{middle}"),
            examples=measures.examples(opened, f"ln1.{middle}"),
        )

    def _sections(self, network: Network) -> dict[str, list[str]]:
        """Source layers of the sections to ablate, by what they are; the middle block alone if quick."""
        middle = measures.middle_block(network)
        chosen: dict[str, list[str]] = {kind: [] for kind in (*CENTRAL_KINDS, "layer norm")}
        for name, kind in measures.kinds(network).items():
            if self.settings.quick and not name.endswith(f".{middle}"):
                continue
            if kind in CENTRAL_KINDS or self.settings.norms:
                chosen[kind if kind in CENTRAL_KINDS else "layer norm"].append(name)
        return {kind: names for kind, names in chosen.items() if names}

    def _first_tokens(self, model: Model, tokens: int, split: Split = "train") -> Samples:
        """The first windows that hold so many tokens, or all there are."""
        whole = model.open_data(self.plan.data, split)
        if whole.kind != "tokens":
            raise InterbasisError(
                f"expected text, as tokens:PATH, text:PATH or hf:DATASET, received {self.plan.data}"
            )
        count = min(len(whole), -(-tokens // whole[0][0].shape[-1]))
        folder = whole.tokenizer or (Path(model.tokenizer) if Path(model.tokenizer).is_dir() else None)
        return replace(first_samples(whole, count), tokenizer=folder)

    def verdicts(self, r: R) -> list[Verdict]:
        return claims.verdicts(r)

    def introduction(self, r: R) -> str:
        return _introduction(r, self.plan, self.settings)

    def scope(self, r: R) -> str:
        return "of this model, while the paper's figures are those of the model that they name"

    def sections(self, r: R) -> list[str]:
        edges = _compared_edges(r) if r.comparison else _edges(r)
        return [edges, _combined(r), _layers(r), _positions(r), _norms(r), _reach(r), _examples(r)]

    def pictures(self, r: R) -> Iterator[Picture]:
        from interbasis_studies.paper.tasks.language import figures

        return figures.pictures(r, self.settings.tolerance)


def _introduction(r: R, plan: Plan, settings: LanguageSettings) -> str:
    """Model and data."""
    if not r.jobs:
        return ""
    job, tokens = r.jobs[0], r.jobs[0].tokens
    sampled = "".join(f", {name.replace('_', ' ')} {value}" for name, value in settings.sampling.items())
    return (
        f"Model: `{plan.model}`, node layers in {job.dtype}. Bases from {tokens.basis:,} tokens and edges "
        f"(gradient{sampled}) from {tokens.edges:,} tokens of the training set of `{plan.data}`. Masks are "
        f"tried on {tokens.test:,} tokens of its test set ({tokens.test_windows} windows, the same for every "
        f"mask and basis), on which the original model has a cross-entropy of {job.ablation.baseline:.4f}; "
        f"what passes is at most {settings.tolerance:g} above it. {_counted(settings)}"
    )


def _counted(settings: LanguageSettings) -> str:
    """Sentence about the tokens that count in bases and edges."""
    if not settings.skip_positions and not settings.norm_limit:
        return "All tokens count in bases and edges, as in the paper."
    parts = [f"the first {settings.skip_positions} positions"] if settings.skip_positions else []
    if settings.norm_limit:
        parts.append(f"tokens whose norm exceeds {settings.norm_limit:g} times the median of their layer")
    return (
        f"Left out of the sums for bases and edges, and not masked: {' and '.join(parts)}; the cross-entropy "
        "is over all tokens."
    )


def _compared_edges(r: R) -> str:
    parts = [
        "## Edges required\n\nThe fewest edges that pass, by bisection as in the paper, each section ablated "
        "alone, of all edges between the features that the basis keeps; the constant's are free. In brackets "
        "the 95 % bootstrap interval over the windows (1,000 draws, the same for both bases; the count from "
        "which every larger one that was tried passes). Ratio: LIB's over PCA's, its interval from paired "
        "draws; **bold** where it excludes 1."
    ]
    for kind, title in KIND_TITLES.items():
        rows = [
            (
                row.name, _with_interval(row.lib, row.lib_interval), row.lib_possible,
                _with_interval(row.pca, row.pca_interval), row.pca_possible,
                percent(1 - row.lib / row.lib_possible, 1), percent(1 - row.pca / row.pca_possible, 1),
                _ratio(row),
            )
            for row in r.comparison
            if r.jobs[0].kinds[row.source] == kind
        ]  # fmt: skip
        if rows:
            head = ("section", "LIB", "of", "PCA", "of", "LIB can go", "PCA can go", "ratio")
            parts.append(f"### {title[0].upper()}{title[1:]}\n\n" + markdown_table(head, rows))
    others = [
        (BASIS_LABELS[job.basis], section.name, _count(section))
        for job in r.by_basis
        if job.basis not in CENTRAL_BASES
        for section in job.ablation.sections.values()
    ]
    if others:
        parts.append("### Other bases\n\n" + markdown_table(("basis", "section", "count [95 %]"), others))
    return "\n\n".join(parts)


def _edges(r: R) -> str:
    rows = [
        (BASIS_LABELS[job.basis], section.name, KIND_TITLES[job.kinds[source]], _count(section),
         section.possible, percent(1 - section.count / section.possible, 1))
        for job in r.by_basis
        for source, section in job.ablation.sections.items()
    ]  # fmt: skip
    return "## Edges required\n\n" + markdown_table(
        ("basis", "section", "kind", "count [95 %]", "of", "can go"), rows
    )


def _count(section: EdgesRequired) -> str:
    return _with_interval(section.count, section.interval) if section.interval else f"{section.count:,}"


def _with_interval(count: int, interval: tuple[int, int]) -> str:
    return f"{count:,} [{interval[0]:,.0f}, {interval[1]:,.0f}]"


def _ratio(row: ComparedEdges) -> str:
    low, high = row.interval
    text = f"{row.ratio:.2f} [{low:.2f}, {high:.2f}]"
    return f"**{text}**" if high < 1 or low > 1 else text


def _combined(r: R) -> str:
    rows = [
        (BASIS_LABELS[job.basis], row.sections, row.number, row.edges, f"{row.value:.4f}",
         f"{row.value - row.baseline:+.4f}")
        for job in r.by_basis
        for row in job.combined
    ]  # fmt: skip
    return "## Sections ablated together\n\nEach with the mask that passes alone.\n\n" + markdown_table(
        ("basis", "sections", "how many", "edges kept", "cross-entropy", "above the model"), rows
    )


def _layers(r: R) -> str:
    rows = []
    for name, layer in r.by_basis[0].node_layers.items():
        cells: list[Cell] = [name, layer.summary.width, layer.variance]
        for job in r.by_basis:
            summary = job.node_layers[name].summary
            dropped = f"{summary.features} (−{summary.dropped_as_noise}, −{summary.dropped_as_unused})"
            cells += [dropped, f"{summary.effective_features:.1f}"]
        rows.append(cells)
    names = [name for job in r.by_basis for name in (f"{BASIS_LABELS[job.basis]}: kept", "effective")]
    return (
        "## Node layers\n\nKept: features, the constant counted (directions dropped as noise, and as without "
        "effect on the next layer). Effective: participation ratio of what ranks the features, Λ in LIB, "
        "variance in PCA. Variance: of all directions kept.\n\n"
        + markdown_table(("layer", "width", "variance", *names), rows)
    )


def _positions(r: R) -> str:
    parts = [
        "## Positional features\n\nShare of a feature's variance that position explains, adjusted for the "
        "number of positions: the first features of every layer, without the constant and the variance of a "
        "layer norm."
    ]
    for job in r.by_basis:
        shares = [
            (name, *(f"{share:.0%}" for share in layer.positional),
             *(None,) * (LISTED_FEATURES - len(layer.positional)))
            for name, layer in job.node_layers.items()
        ]  # fmt: skip
        head = ("layer", *map(str, range(1, 1 + LISTED_FEATURES)))
        parts.append(f"### {BASIS_LABELS[job.basis]}\n\n" + markdown_table(head, shares))
    rows = [
        (BASIS_LABELS[job.basis], job.profiles.layer, row.feature, f"{row.share:.1%}",
         f"{row.shape.step:.2f}", f"{row.shape.line:.2f}", f"{row.shape.sinusoid:.2f}", row.shape.cycles)
        for job in r.by_basis if job.profiles
        for row in job.profiles.features
    ]  # fmt: skip
    parts.append(
        "What the first four look like along the sequence at the start of the middle block: R² of the mean "
        "activation with a step at position 0, a line, and the best sinusoid (both without position "
        "0).\n\n"
        + markdown_table(
            ("basis", "layer", "feature", "position", "position 0", "linear", "sinusoid", "cycles"), rows
        )
    )
    return "\n\n".join(parts)


def _norms(r: R) -> str:
    rows = [
        (BASIS_LABELS[job.basis], row.name, f"{row.own:.1%}", f"{row.own_of_all:.1%}",
         None if row.first is None else f"feature {row.first} ({row.share:.0%})",
         None if row.reaches is None else f"{row.reaches:.0%}")
        for job in r.by_basis
        for row in job.norms.values()
    ]  # fmt: skip
    return (
        "## Layer norms\n\nOwn edge: the largest edge's share of an output's Ê², median over the first 50 "
        "outputs (the paper pictures as many) and over all, the variance left out. Heard: the feature that "
        "drives the variance most, with its share of Ê². Told: the share of the outputs on which the "
        "variance's edge is at least 1 % of the largest.\n\n"
        + markdown_table(
            ("basis", "section", "own edge, first 50", "all", "variance heard", "variance told"), rows
        )
    )


def _reach(r: R) -> str:
    rows = [
        (BASIS_LABELS[job.basis], row.name,
         *(f"{share:.0%} (rank {rank})" for share, rank in zip(row.first, row.ranks, strict=True)),
         f"{row.median:.0%}")
        for job in r.by_basis
        for row in job.reach.values()
    ]  # fmt: skip
    return (
        "## Inputs of attention\n\nShare of the outputs to which an input has an edge that is needed.\n\n"
        + markdown_table(("basis", "section", "first input", "second input", "median input"), rows)
    )


def _examples(r: R) -> str:
    rows = [
        (BASIS_LABELS[job.basis], row.layer, row.feature, row.label, row.most_positive, row.most_negative)
        for job in r.by_basis
        for row in job.examples
    ]
    if not rows:
        return ""
    return (
        "## Feature examples\n\nThe most positive and most negative places of some features; the token that "
        "the value belongs to stands between » and «. All features that were described: `interbasis view "
        "RUN`.\n\n"
        + markdown_table(("basis", "layer", "feature", "label", "most positive", "most negative"), rows)
    )
