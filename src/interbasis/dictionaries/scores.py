"""Scores of dictionaries: a stream is replaced by its reconstruction, and the rest of the network runs on."""

from dataclasses import dataclass
from pathlib import Path

import torch
from pydantic import computed_field
from torch import Tensor

from interbasis.base.errors import InterbasisError
from interbasis.base.files import inside
from interbasis.base.progress import Progress, silent
from interbasis.base.records import Measured, Record
from interbasis.compute.executor import Executor, chunk_size
from interbasis.data.batches import Batches, Data
from interbasis.dictionaries.dictionary import Dictionary
from interbasis.dictionaries.formats import load
from interbasis.dictionaries.network_training import read_training
from interbasis.dictionaries.streams import StreamPlace
from interbasis.graph.settings import DEFAULT_NORM_LIMIT
from interbasis.lib.counted_tokens import ALL_TOKENS, CountedTokens
from interbasis.lib.survey import survey
from interbasis.network.network import Network
from interbasis.network.replacement import replaced_output


class DictionaryScore(Record):
    """Scores of one dictionary on data with next tokens or labels."""

    loss: float
    """Cross-entropy of the original model."""
    replaced_loss: float
    """With the stream replaced by its reconstruction."""
    mean_loss: float
    """With the stream replaced by its mean over the data."""
    active: float
    """L0: features that are active at a token, on average."""
    dead: float
    """Share of the features that are never active."""
    explained: float
    """Share of the stream's variance that the reconstruction explains."""
    tokens: int
    left_out: float = 0.0
    """Share of the tokens that stayed as they are, since their norm exceeds the limit."""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def rise(self) -> float:
        """Rise of the loss by the reconstruction."""
        return self.replaced_loss - self.loss

    @computed_field  # type: ignore[prop-decorator]
    @property
    def recovered(self) -> Measured:
        """Share of the loss that replacing by the mean costs, and the reconstruction does not."""
        cost = self.mean_loss - self.loss
        return 1 - self.rise / cost if cost else float("nan")


class FolderScores(Record):
    """Scores of the dictionaries in a folder, by node layer."""

    model_fingerprint: str
    scores: dict[str, DictionaryScore]


def score_folder(
    network: Network,
    folder: Path,
    data: Data,
    *,
    layer: str = "",
    norm_limit: float | None = None,
    progress: Progress = silent,
) -> FolderScores:
    """Score every dictionary of a folder that `train` wrote, or the only one of a folder; see `score`.

    Raises:
        InterbasisError: There is no dictionary, or it does not fit the network.
    """
    trained = read_training(folder)
    if trained is not None and trained.model_fingerprint != network.fingerprint():
        raise InterbasisError(
            f"the dictionaries in {folder} were trained on {trained.model or 'a model'} of other weights; "
            "name the model that they belong to"
        )
    if trained is not None and layer:
        raise InterbasisError(f"{folder} says which layers its dictionaries are of; leave the layer out")
    if trained is None:
        dictionary = load(folder, layers=network.layers, hook=layer)
        found = {dictionary.hook: dictionary}
    else:
        found = {name: load(inside(folder, name), hook=name) for name in trained.layers}
    scores = {
        name: score(network, dictionary, data, norm_limit=norm_limit, progress=progress)
        for name, dictionary in found.items()
    }
    return FolderScores(model_fingerprint=network.fingerprint(), scores=scores)


@torch.no_grad()
def score(
    network: Network,
    dictionary: Dictionary,
    data: Data,
    *,
    layer: str = "",
    norm_limit: float | None = None,
    progress: Progress = silent,
) -> DictionaryScore:
    """Score a dictionary of the stream that the section after a node layer reads.

    Args:
        network: The network.
        dictionary: The dictionary.
        data: Inputs with labels; tokens alone for a language model.
        layer: Node layer that the dictionary is of; default: the one that it names.
        norm_limit: Tokens whose norm exceeds this many times the median of their layer stay as they are; 0 is
            no limit. Default: 3 for language models, else 0.
        progress: Called with phase, samples done and samples in all.

    Returns:
        Losses over all labelled tokens, statistics over the tokens that are replaced.

    Raises:
        InterbasisError: The dictionary is of another width, or a transcoder.
    """
    place = StreamPlace.from_network(network, layer or dictionary.hook)
    if dictionary.is_transcoder:
        raise InterbasisError(
            f"{dictionary.name or 'the dictionary'} is a transcoder, which does not reconstruct what it "
            "reads; scores are of autoencoders"
        )
    if dictionary.encoder.shape[1] != place.width:
        raise InterbasisError(
            f"expected a dictionary of {place.width} coordinates at {place.layer!r}, received "
            f"{dictionary.encoder.shape[1]}; it is of another layer or model"
        )
    batches = Batches(data, predicts_next=network.predicts_next)
    dictionary = dictionary.to(network.dtype).to(network.device)
    if norm_limit is None:
        norm_limit = DEFAULT_NORM_LIMIT if network.predicts_next else 0.0
    counted = survey(batches, 0, norm_limit, Executor(network)).counted if norm_limit else ALL_TOKENS
    stream = _Stream(network, place, counted)
    mean = stream.mean(batches)
    totals = torch.zeros(6, dtype=torch.float64)  # three losses, labels, error², variance
    used = torch.zeros(dictionary.features, dtype=torch.float64)
    tokens = replaced = 0
    chunks = batches.labelled_chunks(chunk_size(network, batches))
    for _, inputs, labels in batches.tracked(chunks, f"{place.layer}: score", progress):
        inputs = inputs.to(network.device)
        f, counts = stream.activations(inputs)
        x = f[..., place.columns]
        reconstruction = dictionary.reconstruct(x)
        used += (dictionary.encode(x[counts]) != 0).sum(0).cpu()
        tokens, replaced = tokens + counts.numel(), replaced + int(counts.sum())
        for k, changed in enumerate((x, reconstruction, mean.expand_as(x))):
            f_changed = f.clone()
            f_changed[..., place.columns] = torch.where(counts[..., None], changed, x)
            totals[k] += _loss(network, place.index, f_changed, inputs, labels)
        totals[3] += (labels != -100).sum()
        totals[4] += (x - reconstruction)[counts].double().square().sum().cpu()
        totals[5] += (x - mean)[counts].double().square().sum().cpu()
    losses = (totals[:3] / totals[3]).tolist()
    return DictionaryScore(
        loss=losses[0],
        replaced_loss=losses[1],
        mean_loss=losses[2],
        active=used.sum().item() / replaced,
        dead=(used == 0).double().mean().item(),
        explained=1 - (totals[4] / totals[5]).item(),
        tokens=tokens,
        left_out=1 - replaced / tokens,
    )


@dataclass(frozen=True, eq=False)
class _Stream:
    """Activations of a stream, and the tokens that are replaced."""

    network: Network
    place: StreamPlace
    counted: CountedTokens

    def activations(self, inputs: Tensor) -> tuple[Tensor, Tensor]:  # [n, T, width], [n, T]
        f = self.network.activations_at(self.place.index, inputs)
        return f, self.counted.at(self.place.index, self.network.nodes[self.place.index], f)

    def mean(self, batches: Batches) -> Tensor:  # [d]
        total, tokens = torch.zeros((), dtype=torch.float64), 0
        for _, inputs in batches.chunks(chunk_size(self.network, batches)):
            f, counts = self.activations(inputs.to(self.network.device))
            total = total + f[..., self.place.columns][counts].double().sum(0).cpu()
            tokens += int(counts.sum())
        return (total / tokens).to(self.network.dtype).to(self.network.device)


def _loss(network: Network, layer: int, f: Tensor, inputs: Tensor, labels: Tensor) -> float:
    """Summed cross-entropy of the labels, from a node layer on."""
    outputs = replaced_output(network, layer, f, inputs, {})
    return torch.nn.functional.cross_entropy(
        outputs.flatten(0, -2), labels.to(outputs.device).flatten(), reduction="sum", ignore_index=-100
    ).item()
