"""Section 3.3, language models: claims L1 to L5 on one model, a job per basis."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

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
from interbasis_studies.paper.claims import Verdict
from interbasis_studies.paper.figures import Picture
from interbasis_studies.paper.jobs import Job, JobClock, ablate_missing, common_result
from interbasis_studies.paper.plan import LanguageSettings, Plan
from interbasis_studies.paper.records import Reproduction
from interbasis_studies.paper.task import Task
from interbasis_studies.paper.tasks.language import claims, measures, page
from interbasis_studies.paper.tasks.language.records import CENTRAL_KINDS, LanguageResult, TokensUsed

FEATURES = FeaturesRequest(top=16, ends=4, bands=2, per_band=2)
MAX_DESCRIBED_TOKENS = 65_536
"""Tokens of the training set that features are described from."""


class LanguageModel(Task[LanguageResult]):
    """One language model in several bases."""

    quick_form = "few tokens, and edges required in the middle block alone."
    result_type = LanguageResult

    def __init__(self, plan: Plan):
        super().__init__(plan)
        self.title = page.TITLES[plan.task]  # type: ignore[misc]

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

    def verdicts(self, r: Reproduction[LanguageResult]) -> list[Verdict]:
        return claims.verdicts(r)

    def introduction(self, r: Reproduction[LanguageResult]) -> str:
        return page.introduction(r, self.plan, self.settings)

    def scope(self, r: Reproduction[LanguageResult]) -> str:
        return "of this model, while the paper's figures are those of the model that they name"

    def sections(self, r: Reproduction[LanguageResult]) -> list[str]:
        return page.sections(r)

    def pictures(self, r: Reproduction[LanguageResult]) -> Iterator[Picture]:
        from interbasis_studies.paper.tasks.language import figures

        return figures.pictures(r, self.settings.tolerance)
