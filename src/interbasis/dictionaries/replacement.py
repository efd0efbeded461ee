"""A transcoder in place of an MLP: a section with the same ends that computes W_dᵀ z + b_d (+ S x)."""

from dataclasses import replace

import torch
from torch import Tensor, nn

from interbasis.base.errors import InterbasisError
from interbasis.dictionaries.dictionary import Dictionary
from interbasis.network.cores import Elementwise, Gated
from interbasis.network.difference import in_memory
from interbasis.network.hooks import node_layer
from interbasis.network.network import Network, Section


class SparseActivation(nn.Module):
    """z = u where a dictionary's feature is active, else 0; its Jacobian is diagonal, a gate per feature."""

    def __init__(self, dictionary: Dictionary):
        super().__init__()
        threshold = dictionary.threshold
        self.threshold = None if threshold is None else nn.Buffer(threshold.detach().clone())
        self.active, self.features = dictionary.active, dictionary.features

    def extra_repr(self) -> str:
        limit = "" if self.active is None else f", the {self.active} largest"
        return f"{self.features} features{limit}{'' if self.threshold is None else ', with thresholds'}"

    def forward(self, u: Tensor) -> Tensor:  # [..., features], or [] for 0 everywhere
        if u.ndim == 0:
            return torch.zeros_like(u)
        empty = u.new_zeros(0)
        gates = Dictionary(empty, empty, empty, empty, threshold=self.threshold, active=self.active)
        return torch.where(gates.is_active(u), u, 0.0)


def transcoder_section(section: Section, transcoder: Dictionary) -> Section:
    """Return the section with a transcoder in place of its MLP; carried streams are left as they are.

    The transcoder reads the stream that the MLP reads, as the node layer holds it (before the norm's gain:
    `dictionaries.load` takes ``gain`` and ``bias``), and writes where the MLP writes.

    Raises:
        InterbasisError: The section is no MLP, or the transcoder has other widths or rescales tokens.
    """
    section = in_memory(section)
    name = f"section {section.source.name} → {section.target.name}"
    if not isinstance(section.core, Elementwise | Gated) or not section.reads_per_position:
        raise InterbasisError(f"{name}: expected an MLP to replace, received {section.core}")
    columns = slice(*section.columns_read)
    rows = section.write.any(1).nonzero()[:, 0]
    d_in, d_out = transcoder.encoder.shape[1], transcoder.decoder.shape[1]
    if (d_in, d_out) != (columns.stop - columns.start, len(rows)):
        raise InterbasisError(
            f"{name}: expected a transcoder from {columns.stop - columns.start} to {len(rows)} coordinates, "
            f"received one from {d_in} to {d_out}"
        )
    if transcoder.scaling != "none":
        raise InterbasisError(
            f"{name}: expected a transcoder without scaling, received one that rescales every token "
            f"({transcoder.scaling})"
        )
    transcoder = transcoder.to(section.skip.dtype).to(section.skip.device)
    read = section.skip.new_zeros(transcoder.features, section.skip.shape[1])
    read[:, 0], read[:, columns] = transcoder.encoder_bias, transcoder.encoder
    write = section.skip.new_zeros(section.skip.shape[0], transcoder.features)
    write[rows] = transcoder.decoder.T
    skip = section.skip.clone()
    skip[rows, 0] = transcoder.decoder_bias
    if transcoder.skip is not None:
        skip[rows, columns] += transcoder.skip
    core = Elementwise(SparseActivation(transcoder))
    return replace(section, skip=skip, read=read, write=write, core=core)


def with_transcoder(network: Network, transcoder: Dictionary, layer: str = "") -> Network:
    """Return the network with a transcoder in place of the MLP after a node layer.

    Args:
        network: The network.
        transcoder: The transcoder.
        layer: Node layer that the MLP reads; default: where the transcoder was trained.

    Returns:
        The network, which shares all other sections.

    Raises:
        InterbasisError: There is no such layer, or the transcoder does not fit.
    """
    name = node_layer(layer or transcoder.hook, network.layers[:-1])
    index = network.layers.index(name)
    section = transcoder_section(network.sections[index], transcoder)
    sections = (*network.sections[:index], section, *network.sections[index + 1 :])
    return replace(network, sections=sections, remake=None)
