"""Labels of a dictionary's features: strongest examples, and short descriptions that were tested.

A description is a set of tokens: "the token is …", "it follows …" or "it comes before …". It is chosen on the
samples of even number: the tokens at which the feature is active more often than not. On the samples of odd
number its precision (of the tokens that fit the description, the share where the feature is active) and
recall (of the tokens where it is active, the share that fits) are counted. Where no set of tokens tells more
than a little, there is no short description.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Tensor

from interbasis.analysis.stored_results import DataUsed, Result
from interbasis.base.errors import InterbasisError
from interbasis.base.progress import progress_bar
from interbasis.base.records import Measured, Record
from interbasis.compute.checkpoints import State, environment
from interbasis.compute.executor import BLOCKS, Chunk, Executor, Pass
from interbasis.compute.team import team_checkpoints
from interbasis.data.batches import Batches
from interbasis.dictionaries.layers import ActiveFeatures, DictionaryLayer
from interbasis.lib.counted_tokens import ALL_TOKENS, CountedTokens
from interbasis.network.network import Network

if TYPE_CHECKING:
    from interbasis.analysis.dictionaries.workspace import DictionaryWorkspace

Relation = Literal["token", "after", "before"]
OFFSETS: dict[Relation, int] = {"token": 0, "after": -1, "before": 1}
"""Position of the described token relative to the active one."""
EXAMPLES = 6
"""Strongest activations that are kept for a feature."""
CONTEXT_BEFORE, CONTEXT_AFTER = 12, 3
"""Tokens shown around an activation."""
MIN_PRECISION = 0.5
"""Share of a token's occurrences at which the feature is active, for it to be in the description."""
MIN_F1 = 0.3
"""Harmonic mean of precision and recall on the samples it was chosen on, below which it is not given."""
MAX_SET = 40
"""Tokens in a set that still is a short description."""
MAX_TOKENS_NAMED = 4
MAX_PENDING = 2**22
"""Codes that are held before equal ones are counted."""
NO_TOKEN = -1
"""In a context, in place of tokens before the first and after the last."""


class Description(Record):
    """A set of tokens that tells where a feature is active."""

    relation: Relation
    tokens: tuple[int, ...]
    """The most frequent of the set first; at most a few are named."""
    size: int
    """Tokens in the set."""
    precision: Measured
    recall: Measured
    """Both on samples that it was not chosen on."""


class FeatureExample(Record):
    """One strong activation in its context."""

    value: float
    tokens: tuple[int, ...]
    """The tokens around it."""
    place: int
    """Index of the active token among them."""


class DescribedFeature(Record):
    """A feature's examples and description."""

    feature: int
    description: Description | None
    """None: no short description."""
    examples: tuple[FeatureExample, ...]

    @property
    def tokens(self) -> list[int]:
        """Tokens that its description and its examples name."""
        described = self.description.tokens if self.description else ()
        return [*described, *(token for example in self.examples for token in example.tokens)]


class LayerDescriptions(Record):
    """Descriptions of a dictionary's features."""

    place: str
    described: int
    """Features with a short description, of those that are active at all."""
    active: int
    features: tuple[DescribedFeature, ...]


class DescriptionsResult(Result):
    """Tokens at which the features of every dictionary are active."""

    file: ClassVar[str] = "descriptions"
    command: ClassVar[str] = "features"

    data: DataUsed
    tokens: int
    words: dict[int, str]
    """Texts of all tokens that are named, by number; empty where the model has no tokenizer."""
    layers: tuple[LayerDescriptions, ...]


class FeatureTokensPass(Pass[dict[str, Tensor]]):
    """Strongest activations of every feature, and how often it is active at every token of the vocabulary."""

    name = phase = file = "features"

    def __init__(
        self, network: Network, layers: Sequence[DictionaryLayer], counted: CountedTokens = ALL_TOKENS
    ):
        self.network, self.layers, self.counted = network, layers, counted

    def start(self) -> dict[str, Tensor]:
        return {}

    @torch.no_grad()
    def update(self, state: dict[str, Tensor], chunk: Chunk) -> None:
        f, index = chunk.activations_at(self.layers[0].index), self.layers[0].index
        tokens = chunk.inputs
        halves = (chunk.first + torch.arange(len(tokens), device=tokens.device)) % 2
        for relation, offset in OFFSETS.items():
            shifted = _shifted(tokens, offset)
            for half in (0, 1):
                present = shifted[halves == half].flatten()
                _add_codes(state, f"tokens.{relation}.{half}", present[present != NO_TOKEN])
        for k, layer in enumerate(self.layers):
            while index < layer.index:
                f, index = self.network.sections[index](f), index + 1
            counts = self.counted.at(index, self.network.nodes[index], f)
            active = layer.encode(f).at(counts)
            samples, positions, places = active.real.nonzero().unbind(1)
            features = active.indices[samples, positions, places]
            self._add_examples(state, f"{k}.", layer, active, tokens)
            for relation, offset in OFFSETS.items():
                described = _shifted(tokens, offset)[samples, positions]
                for half in (0, 1):
                    chosen = (halves[samples] == half) & (described != NO_TOKEN)
                    codes = described[chosen] * layer.features + features[chosen]
                    _add_codes(state, f"{k}.{relation}.{half}", codes)

    def _add_examples(
        self,
        state: dict[str, Tensor],
        prefix: str,
        layer: DictionaryLayer,
        active: ActiveFeatures,
        tokens: Tensor,
    ) -> None:
        flat = active.values.new_zeros(tokens.numel(), layer.features)
        flat.scatter_(1, active.indices.flatten(0, 1), active.values.flatten(0, 1))
        values, places = flat.topk(min(EXAMPLES, len(flat)), dim=0)  # [n, K]
        padded = torch.nn.functional.pad(tokens, (CONTEXT_BEFORE, CONTEXT_AFTER), value=NO_TOKEN)
        windows = padded.unfold(1, CONTEXT_BEFORE + 1 + CONTEXT_AFTER, 1).flatten(0, 1)  # [tokens, W]
        _add_largest(state, prefix, values.T, windows[places.T])

    def merge(self, state: dict[str, Tensor], other: dict[str, Tensor]) -> None:
        for name, tensor in other.items():
            if name.endswith(".values"):
                prefix = name.removesuffix("values")
                _add_largest(state, prefix, tensor, other[prefix + "contexts"])
            elif name.endswith(".codes"):
                counts = other[name.removesuffix("codes") + "counts"]
                _add_codes(state, name.removesuffix(".codes"), tensor, counts)

    def dump(self, state: dict[str, Tensor]) -> State:
        for name in [name for name in state if name.endswith(".codes")]:
            _count(state, name.removesuffix(".codes"))
        return state, {}

    def load(self, saved: State) -> dict[str, Tensor]:
        return dict(saved[0])


def describe_features(workspace: "DictionaryWorkspace", data: str | None = None) -> DescriptionsResult:
    """Describe all features of a graph that are active in it, and store the result.

    Raises:
        InterbasisError: The model takes no tokens.
    """
    network, layers, team = workspace.computing, workspace.layers, workspace.team
    if not network.predicts_next:
        raise InterbasisError("descriptions are of tokens; expected a language model")
    samples = workspace.data(data, "train")
    batches, used = Batches(samples), DataUsed.from_data(samples)
    decisive: dict[str, object] = {"data": used.fingerprint, "graph": workspace.digest} | environment()
    checkpoints = team_checkpoints(workspace.folder, DescriptionsResult.file, decisive, team)
    with progress_bar(workspace.progress) as advance:
        executor = Executor(network, team, checkpoints, advance, blocks=BLOCKS)
        pass_ = FeatureTokensPass(network, layers, workspace.counted)
        state, _ = pass_.dump(executor.run(pass_, batches))
    described = []
    for k, (layer, statistics) in enumerate(zip(layers, workspace.graph.statistics, strict=True)):
        active = statistics.frequency.nonzero()[:, 0].tolist()
        features = describe(k, layer.features, state, active)
        known = sum(feature.description is not None for feature in features)
        described.append(
            LayerDescriptions(place=layer.name, described=known, active=len(active), features=tuple(features))
        )
    counted = sum(state[f"tokens.token.{half}.counts"].sum() for half in (0, 1))
    named = {token for layer in described for feature in layer.features for token in feature.tokens}
    result = DescriptionsResult(
        data=used, tokens=int(counted), words=workspace.words(named), layers=tuple(described)
    )
    workspace.store(result)
    if team.is_first:
        checkpoints.finish(DescriptionsResult.file)
    team.wait_for_all()
    return result


def describe(
    layer: int, features: int, state: dict[str, Tensor], chosen: Sequence[int]
) -> list[DescribedFeature]:
    """Describe features of a dictionary, number ``layer`` in the pass, from the state of the pass."""
    best: list[tuple[float, Description | None]] = [(MIN_F1, None)] * features
    for relation in OFFSETS:
        fitted, held = (
            _Table.from_state(state, f"{layer}.{relation}.{half}", f"tokens.{relation}.{half}", features)
            for half in (0, 1)
        )
        inside = fitted.counts >= MIN_PRECISION * fitted.occurrences
        keys = fitted.codes[inside]  # token · features + feature
        precision, recall = fitted.score(keys, features)
        f1 = 2 * precision * recall / (precision + recall).clamp_min(1e-12)
        held_precision, held_recall = held.score(keys, features)
        order = fitted.counts[inside].argsort(descending=True)
        named: dict[int, list[int]] = {}
        for code in keys[order].tolist():
            named.setdefault(code % features, []).append(code // features)
        for feature, tokens in named.items():
            if f1[feature] > best[feature][0] and len(tokens) <= MAX_SET:
                best[feature] = (
                    f1[feature].item(),
                    Description(
                        relation=relation, tokens=tuple(tokens[:MAX_TOKENS_NAMED]), size=len(tokens),
                        precision=held_precision[feature].item(), recall=held_recall[feature].item(),
                    ),
                )  # fmt: skip
    values, contexts = state[f"{layer}.values"], state[f"{layer}.contexts"]
    return [
        DescribedFeature(
            feature=feature, description=best[feature][1],
            examples=tuple(
                _example(value, context.tolist())
                for value, context in zip(values[feature].tolist(), contexts[feature], strict=True)
                if value != 0
            ),
        )
        for feature in chosen
    ]  # fmt: skip


def _example(value: float, context: list[int]) -> FeatureExample:
    before = [token for token in context[:CONTEXT_BEFORE] if token != NO_TOKEN]
    after = [token for token in context[CONTEXT_BEFORE:] if token != NO_TOKEN]
    return FeatureExample(value=value, tokens=(*before, *after), place=len(before))


class _Table:
    """Counts of features that are active at tokens of one half of the samples."""

    def __init__(
        self, codes: Tensor, counts: Tensor, occurrences: Tensor, all_tokens: dict[int, int], K: int
    ):
        self.codes, self.counts, self.occurrences, self.all_tokens = codes, counts, occurrences, all_tokens
        self.active = torch.zeros(K).index_add_(0, codes % K, counts.float())

    @classmethod
    def from_state(cls, state: dict[str, Tensor], name: str, tokens: str, features: int) -> "_Table":
        empty = torch.zeros(0, dtype=torch.int64)
        codes, counts = state.get(f"{name}.codes", empty), state.get(f"{name}.counts", empty)
        present, totals = state.get(f"{tokens}.codes", empty), state.get(f"{tokens}.counts", empty)
        all_tokens = dict(zip(present.tolist(), totals.tolist(), strict=True))
        place = torch.searchsorted(present, codes // features)
        return cls(codes, counts, totals[place] if len(codes) else empty, all_tokens, features)

    def score(self, keys: Tensor, features: int) -> tuple[Tensor, Tensor]:
        """Precision and recall [features] of sets of tokens; keys are token · features + feature."""
        hits = torch.zeros(features).index_add_(
            0, self.codes % features, self.counts.float() * torch.isin(self.codes, keys)
        )
        occurrences = torch.tensor(
            [self.all_tokens.get(token, 0) for token in (keys // features).tolist()], dtype=torch.float32
        )
        fits = torch.zeros(features).index_add_(0, keys % features, occurrences)
        return hits / fits.clamp_min(1), hits / self.active.clamp_min(1)


def _shifted(tokens: Tensor, offset: int) -> Tensor:  # [n, T]
    """The token at every position plus an offset, NO_TOKEN beyond the ends."""
    result = torch.full_like(tokens, NO_TOKEN)
    if offset == 0:
        return tokens
    if offset < 0:
        result[:, -offset:] = tokens[:, :offset]
    else:
        result[:, :-offset] = tokens[:, offset:]
    return result


def _add_codes(state: dict[str, Tensor], name: str, codes: Tensor, counts: Tensor | None = None) -> None:
    counts = torch.ones_like(codes) if counts is None else counts
    for suffix, more in ((".codes", codes), (".counts", counts)):
        old = state.get(name + suffix)
        state[name + suffix] = more if old is None else torch.cat([old, more])
    if len(state[name + ".codes"]) > MAX_PENDING:
        _count(state, name)


def _count(state: dict[str, Tensor], name: str) -> None:
    """Count equal codes together."""
    codes, place = state[name + ".codes"].unique(return_inverse=True)
    counts = state[name + ".counts"]
    state[name + ".codes"], state[name + ".counts"] = (
        codes,
        counts.new_zeros(len(codes)).index_add_(0, place, counts),
    )


def _add_largest(state: dict[str, Tensor], prefix: str, values: Tensor, contexts: Tensor) -> None:
    """Keep the largest values [K, n] of every feature, with their contexts [K, n, W]."""
    if prefix + "values" in state:
        values = torch.cat([state[prefix + "values"], values], dim=1)
        contexts = torch.cat([state[prefix + "contexts"], contexts], dim=1)
    values, places = values.topk(min(EXAMPLES, values.shape[1]), dim=1)
    state[prefix + "values"] = values
    state[prefix + "contexts"] = contexts.gather(1, places[..., None].expand(-1, -1, contexts.shape[2]))


def description_text(description: Description | None, texts: Mapping[int, str]) -> str:
    """A description in a few words, with its precision and recall left out; texts of tokens by number."""
    if description is None:
        return "no short description"
    words = [repr(texts[token]) if token in texts else str(token) for token in description.tokens]
    more = f" and {description.size - len(words)} more" if description.size > len(words) else ""
    prefix = {"token": "", "after": "after ", "before": "before "}[description.relation]
    return prefix + " ".join(words) + more


def feature_texts(found: DescriptionsResult) -> dict[tuple[str, int], str]:
    """Descriptions of features by place and number."""
    return {
        (layer.place, feature.feature): description_text(feature.description, found.words)
        for layer in found.layers
        for feature in layer.features
    }
