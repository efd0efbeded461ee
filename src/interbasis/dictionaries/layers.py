"""Dictionaries in a network: where they read, and the vectors that their features are in a node layer.

With f̂ = [1; z; e] a stream is x = W_dᵀ z + e + b_d, exactly. A node layer f is then a sum of vectors at
every token: one per active feature, W_d,j z_j; the error e; what is carried beside the stream; and the
constant with the decoder's bias. Three kinds of places:

- a stream of a node layer (the residual stream, or the normalised input of attention or an MLP): features are
  read there and are vectors there;
- the output of attention or an MLP (`attn_out.3`, `mlp_out.3`): it is what the section adds to the residual
  stream, which is carried;
- a transcoder reads the input of an MLP, and its features are vectors in the MLP's output.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import torch
from torch import Tensor

from interbasis.base.errors import InterbasisError
from interbasis.dictionaries.dictionary import Dictionary
from interbasis.dictionaries.lib_bases import LibBasis
from interbasis.network.hooks import layer_name
from interbasis.network.network import Network, Section

OUTPUTS = {"attn_out": "attn_in", "mlp_out": "mlp_in"}
"""Outputs of sections that a dictionary may read, and the node layer before the section."""
HOOKS = {"hook_attn_out": "attn_out", "hook_mlp_out": "mlp_out"}
"""TransformerLens' names of these outputs."""
REMAINDERS = ("error", "carried", "constant")
"""Parts of a node layer beside the features, in this order."""


@dataclass(frozen=True, eq=False)
class ActiveFeatures:
    """Active features of tokens, filled up to as many as the token with most of them has."""

    indices: Tensor  # [..., k]
    values: Tensor  # [..., k]; 0 where filled up
    real: Tensor  # [..., k], bool

    def at(self, tokens: Tensor) -> "ActiveFeatures":  # bool [...]
        """The same at some tokens; at the others no feature is active."""
        real = self.real & tokens[..., None]
        return ActiveFeatures(self.indices, torch.where(real, self.values, 0.0), real)


@dataclass(frozen=True, eq=False)
class DictionaryLayer:
    """A dictionary at its place in a network."""

    name: str
    dictionary: Dictionary
    index: int
    """Number of the node layer that it is read from."""
    section: Section
    """The section after that node layer."""
    reads_output: bool
    """Whether it reads the section's output, without the residual stream, instead of a stream before it."""

    @classmethod
    def from_network(cls, network: Network, place: str, dictionary: Dictionary) -> "DictionaryLayer":
        """Place a dictionary in a network.

        Args:
            network: The network.
            place: A node layer with a section after it, or the output of one (`attn_out.3`, `mlp_out.3`).
            dictionary: The dictionary; a transcoder is placed at the node layer that it reads.

        Raises:
            InterbasisError: There is no such place, or the dictionary does not fit it.
        """
        layer, reads_output = _node_layer(network, place)
        index = network.layers.index(layer)
        dictionary = dictionary.to(network.dtype).to(network.device)
        result = cls(place, dictionary, index, network.sections[index], reads_output)
        if dictionary.scaling != "none":
            raise InterbasisError(
                f"the dictionary of {place!r} rescales every token ({dictionary.scaling}), so edges into its "
                "features are not defined; choose one without it"
            )
        if dictionary.is_transcoder and (reads_output or result.section.core.mixes_positions):
            raise InterbasisError(
                f"expected a transcoder at the input of an MLP, received {place!r} for one that reads "
                f"{dictionary.hook!r}"
            )
        for role, matrix, columns in (
            ("reads", dictionary.encoder, result.columns),
            ("writes", dictionary.decoder, result.source_columns),
        ):
            if matrix.shape[1] != columns.stop - columns.start:
                raise InterbasisError(
                    f"expected a dictionary that {role} {columns.stop - columns.start} coordinates at "
                    f"{place!r}, received one that {role} {matrix.shape[1]}"
                )
        return result

    @property
    def features(self) -> int:
        return self.dictionary.features

    @property
    def writes_output(self) -> bool:
        """Whether its features are vectors in the section's output, added to the residual stream."""
        return self.reads_output or self.dictionary.is_transcoder

    @property
    def columns(self) -> slice:
        """Coordinates that it reads, of the node layer or of the section's output."""
        return self._output if self.reads_output else self._stream

    @property
    def source_index(self) -> int:
        """Number of the node layer that its features are vectors in."""
        return self.index + self.writes_output

    @property
    def source_columns(self) -> slice:
        """Coordinates of these vectors."""
        return self._output if self.writes_output else self._stream

    @property
    def _stream(self) -> slice:
        first, end = self.section.columns_read
        if first == end or isinstance(self.dictionary, LibBasis):  # a linear section has no read-outs
            first, end = self.section.source.first_coordinate, self.section.source.width
        return slice(first, end)

    @property
    def _output(self) -> slice:
        return slice(self.section.target.first_coordinate, self.section.target.width)

    @cached_property
    def through(self) -> tuple[Section, ...]:
        """The section whose output is read, without the residual stream; empty for a stream."""
        if not self.reads_output:
            return ()
        skip = torch.zeros_like(self.section.skip)
        skip[:, 0] = self.section.skip[:, 0]  # the bias
        return (replace(self.section, skip=skip),)

    def encode(self, f: Tensor) -> ActiveFeatures:  # [n, T, width] of node layer ``index`` -> [n, S, k]
        """Active features of tokens."""
        for section in self.through:
            f = section(f)
        u = self.dictionary.preactivations(f[..., self.columns])
        active = self.dictionary.is_active(u)
        most = max(1, int(active.sum(-1).max())) if u.numel() else 1
        indices = active.to(torch.uint8).topk(most, -1).indices
        values = torch.where(active, u, 0.0).gather(-1, indices)
        return ActiveFeatures(indices, values, active.gather(-1, indices))

    def rows(self, features: Tensor) -> Tensor:  # [...] -> [..., width]
        """Rows W_e of features, in the coordinates of the node layer or of the section's output."""
        width = self.section.target.width if self.reads_output else self.section.source.width
        rows = self.dictionary.encoder.new_zeros(*features.shape, width)
        rows[..., self.columns] = self.dictionary.encoder[features]
        return rows

    def split(self, active: ActiveFeatures, before: Tensor, f: Tensor) -> Tensor:  # [..., k + 3, width]
        """Split a node layer's activations at every token into vectors that add up to them.

        Active features come first, then `REMAINDERS`.

        Args:
            active: Active features [..., k].
            before: Activations [..., d] of node layer ``index``.
            f: Activations [..., width] of node layer ``source_index``, at the same positions.
        """
        columns, dictionary, k = self.source_columns, self.dictionary, active.indices.shape[-1]
        vectors = f.new_zeros(*f.shape[:-1], k + len(REMAINDERS), f.shape[-1])
        features = dictionary.decoder[active.indices] * active.values[..., None]
        vectors[..., :k, columns] = features
        error, carried, constant = vectors[..., k:, :].unbind(-2)
        carried.copy_(f)
        carried[..., columns] = self._carried(before) if self.writes_output else 0.0
        if columns.start:
            constant[..., 0] = f[..., 0]
            carried[..., 0] = 0.0
        constant[..., columns] = dictionary.decoder_bias
        error[..., columns] = (f - carried)[..., columns] - features.sum(-2) - dictionary.decoder_bias
        return vectors

    def _carried(self, before: Tensor) -> Tensor:  # [..., d] -> [..., columns]
        """The residual stream that the section's output is added to, and the skip of a transcoder."""
        stream = before.clone()
        stream[..., 0] = 0.0  # without the bias
        carried = (stream @ self.section.skip.T)[..., self.source_columns]
        skip = self.dictionary.skip
        return carried if skip is None else carried + before[..., self.columns] @ skip.T


def _node_layer(network: Network, place: str) -> tuple[str, bool]:
    """The node layer of a place, and whether the place is the output of the section after it."""
    layers = network.layers[:-1]
    hook = re.fullmatch(r"blocks\.(\d+)\.(hook_attn_out|hook_mlp_out)", place)
    kind, _, number = f"{HOOKS[hook[2]]}.{hook[1]}".partition(".") if hook else place.partition(".")
    if kind in OUTPUTS and f"{OUTPUTS[kind]}.{number}" in layers:
        return f"{OUTPUTS[kind]}.{number}", True
    name = layer_name(place, layers)
    if name not in layers:
        outputs = [f"{kind}.{layer.partition('.')[2]}" for kind, before in OUTPUTS.items() for layer in layers
                   if layer.startswith(before + ".")]  # fmt: skip
        raise InterbasisError(
            f"there is no place {place!r} for a dictionary; expected one of {', '.join([*layers, *outputs])}"
        )
    return name, False


def place_dictionaries(network: Network, dictionaries: Mapping[str, Dictionary]) -> list[DictionaryLayer]:
    """Place dictionaries in a network, in its order.

    Raises:
        InterbasisError: There is none, two have one place, or one does not fit.
    """
    if not dictionaries:
        raise InterbasisError("expected at least one dictionary, received none")
    layers = [DictionaryLayer.from_network(network, place, d) for place, d in dictionaries.items()]
    layers.sort(key=lambda layer: (layer.index, layer.writes_output))
    for before, after in pairwise(layers):
        if before.source_index > after.index:
            raise InterbasisError(
                f"the dictionaries of {before.name!r} and {after.name!r} overlap; expected one of them"
            )
    return layers
