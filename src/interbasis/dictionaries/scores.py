"""Scores of dictionaries: a stream is replaced by its reconstruction, and the rest of the network runs on."""

import torch
from torch import Tensor

from interbasis.base.records import Measured, Record
from interbasis.compute.executor import chunk_size
from interbasis.data.batches import Batches, Data
from interbasis.dictionaries.dictionary import Dictionary
from interbasis.network.network import Network
from interbasis.network.replacement import replaced_output


class DictionaryScore(Record):
    """Scores of one dictionary on data with next tokens or labels."""

    loss: float
    """Cross-entropy of the untouched model."""
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

    @property
    def rise(self) -> float:
        """Rise of the loss by the reconstruction."""
        return self.replaced_loss - self.loss

    @property
    def recovered(self) -> Measured:
        """Share of the loss that replacing by the mean costs, and the reconstruction does not."""
        cost = self.mean_loss - self.loss
        return 1 - self.rise / cost if cost else float("nan")


@torch.no_grad()
def score(
    network: Network, layer: int, columns: slice, dictionary: Dictionary, data: Data
) -> DictionaryScore:
    """Score a dictionary of the coordinates ``columns`` of a node layer.

    Args:
        network: The network.
        layer: Index of the node layer.
        columns: Coordinates of the stream that the dictionary is of.
        dictionary: The dictionary.
        data: Inputs with labels; tokens alone for a language model.

    Returns:
        Losses and statistics over all labelled tokens.
    """
    batches = Batches(data, predicts_next=network.predicts_next)
    dictionary = dictionary.to(network.dtype).to(network.device)
    mean = _mean(network, layer, columns, batches)
    totals = torch.zeros(6, dtype=torch.float64)  # three losses, labels, error², variance
    used = torch.zeros(dictionary.features, dtype=torch.float64)
    tokens = 0
    for _, inputs, labels in batches.labelled_chunks(chunk_size(network, batches)):
        inputs = inputs.to(network.device)
        f = network.activations_at(layer, inputs)
        x = f[..., columns]
        z = dictionary.encode(x)
        reconstruction = dictionary.reconstruct(x)
        used += (z != 0).sum((0, 1)).cpu()
        tokens += x.shape[0] * x.shape[1]
        for k, stream in enumerate((x, reconstruction, mean.expand_as(x))):
            totals[k] += _loss(network, layer, _replaced(f, columns, stream), inputs, labels)
        totals[3] += (labels != -100).sum()
        totals[4] += (x - reconstruction).double().square().sum().cpu()
        totals[5] += (x - mean).double().square().sum().cpu()
    losses = (totals[:3] / totals[3]).tolist()
    return DictionaryScore(
        loss=losses[0],
        replaced_loss=losses[1],
        mean_loss=losses[2],
        active=used.sum().item() / tokens,
        dead=(used == 0).double().mean().item(),
        explained=1 - (totals[4] / totals[5]).item(),
        tokens=tokens,
    )


def _replaced(f: Tensor, columns: slice, stream: Tensor) -> Tensor:
    f = f.clone()
    f[..., columns] = stream
    return f


def _loss(network: Network, layer: int, f: Tensor, inputs: Tensor, labels: Tensor) -> float:
    """Summed cross-entropy of the labels, from a node layer on."""
    outputs = replaced_output(network, layer, f, inputs, {})
    return torch.nn.functional.cross_entropy(
        outputs.flatten(0, -2), labels.to(outputs.device).flatten(), reduction="sum", ignore_index=-100
    ).item()


def _mean(network: Network, layer: int, columns: slice, batches: Batches) -> Tensor:  # [d]
    total, tokens = torch.zeros((), dtype=torch.float64), 0
    for _, inputs in batches.chunks(chunk_size(network, batches)):
        x = network.activations_at(layer, inputs.to(network.device))[..., columns]
        total = total + x.double().sum((0, 1)).cpu()
        tokens += x.shape[0] * x.shape[1]
    return (total / tokens).to(network.dtype).to(network.device)
