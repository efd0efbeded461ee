"""A graph between dictionaries with its network, its dictionaries, its data and its results."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import torch

from interbasis.analysis.prompts import token_names
from interbasis.analysis.workspace import OpenedRun
from interbasis.base.errors import InterbasisError
from interbasis.dictionaries.dictionary import Dictionary
from interbasis.dictionaries.formats import load
from interbasis.dictionaries.graph import DictionaryGraph
from interbasis.dictionaries.layers import DictionaryLayer, place_dictionaries
from interbasis.graph.named_sources import find_path
from interbasis.lib.counted_tokens import CountedTokens
from interbasis.network.network import Network


@dataclass(eq=False, kw_only=True, repr=False)
class DictionaryWorkspace(OpenedRun):
    """A graph between dictionaries, saved or not, with its network, its data and its results."""

    graph: DictionaryGraph
    given_dictionaries: Mapping[str, Dictionary] = field(default_factory=dict)
    """Dictionaries that were given in Python, by place."""

    @cached_property
    def computing(self) -> Network:
        """The network in the dtype of the build."""
        return self.network.to(getattr(torch, self.graph.header.config.dtype))

    @property
    def counted(self) -> CountedTokens:
        """The tokens that counted in the build."""
        header = self.graph.header
        return CountedTokens.from_limits(self.computing, header.config.skip_positions, header.norm_limits)

    @cached_property
    def layers(self) -> list[DictionaryLayer]:
        """The dictionaries at their places.

        Raises:
            InterbasisError: A file is not there, is not trusted, or has changed since the build.
        """
        opened: dict[str, Dictionary] = dict(self.graph.bases)
        folder = self.graph.provenance.naming_folder(self.folder)
        for reference in self.graph.header.layers:
            place = reference.place
            if place in opened:
                continue
            dictionary = self.given_dictionaries.get(place)
            if dictionary is None and not reference.path:
                raise InterbasisError(
                    f"the dictionary of {place!r} was given in Python and has no file; give it to "
                    "interbasis.open_run(folder, dictionaries=…), or build the graph from files"
                )
            if dictionary is None:
                self._require_trust(f"dictionary {place}")
                dictionary = load(find_path(reference.path, folder) or reference.path)
            if dictionary.digest != reference.digest:
                raise InterbasisError(
                    f"{reference.path or place} is not the dictionary that {self.folder or 'this graph'} was "
                    "built with: its SHA-256 differs; build the graph again"
                )
            opened[place] = dictionary
        return place_dictionaries(self.computing, opened)

    def words(self, tokens: Iterable[int]) -> dict[int, str]:
        """Texts of tokens by number; none where the model has no tokenizer."""
        names = token_names(self, self.tokenizer) or ()
        return {token: names[token] for token in sorted(set(tokens)) if 0 <= token < len(names)}
