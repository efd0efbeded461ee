"""A prompt of a run: text made into tokens as the model's data are, or one sample of the data."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from interbasis.analysis.features.contexts import ImageRendering, Presentation, vocabulary
from interbasis.base.errors import InterbasisError
from interbasis.data.batches import Batches
from interbasis.graph.interaction_graph import InteractionGraph
from interbasis.graph.layer_basis import LayerBasis
from interbasis.network.hooks import layer_name

if TYPE_CHECKING:
    from interbasis.analysis.workspace import OpenedRun


@dataclass(frozen=True, eq=False)
class Prompt:
    """One sample, and what its tokens and the model's outputs are called."""

    text: str
    inputs: Tensor  # [positions], [positions, width], an image, or one row of numbers
    names: Sequence[str] | None = None
    encode: Callable[[str], list[int]] | None = None
    picture: str | None = None
    """The sample as a PNG data URI, where it is a picture."""

    def output_name(self, output: int) -> str:
        """Return the name of an output; its number where it has no name."""
        names = self.names or ()
        return names[output] if 0 <= output < len(names) else str(output)


def open_prompt(
    workspace: "OpenedRun", text: str | None, sample: int | None, data: str | None = None
) -> Prompt:
    """Return the sample that a prompt or a sample's number names, of the run's data or of those named.

    Raises:
        InterbasisError: Both or neither are given, there is no tokenizer, or no such sample.
    """
    if (text is None) == (sample is None):
        raise InterbasisError("expected either a prompt (a text) or the number of a sample of the data")
    if text is not None and data is not None:
        raise InterbasisError(
            "data are where a sample is taken from; leave them out, or give a sample's number"
        )
    folder = workspace.tokenizer
    if text is not None:
        return _from_text(workspace, text, folder)
    assert sample is not None
    samples = workspace.data(data, "train")
    batches = samples if isinstance(samples, Batches) else Batches(samples)
    if sample >= len(batches):
        raise InterbasisError(f"the data have samples 0 to {len(batches) - 1}, received {sample}")
    row = next(batches.chunks(1, sample))[1][0]
    names = (
        token_names(workspace, folder)
        or workspace.network.class_names
        or getattr(samples, "classes", None)
        or None
    )
    is_text = not row.is_floating_point() and names is not None and workspace.network.predicts_next
    text = "".join(names[int(token)] for token in row) if is_text and names else f"sample {sample}"
    rendering = Presentation.from_data(workspace.network, samples, batches).rendering
    picture = rendering.picture(row) if isinstance(rendering, ImageRendering) else None
    return Prompt(text, row, names, picture=picture)


def _from_text(workspace: "OpenedRun", text: str, folder: str) -> Prompt:
    from interbasis.data.text import open_tokenizer

    if not folder:
        raise InterbasisError(
            "a prompt requires a tokenizer, and this run's model and data have none; give the number of "
            "a sample of the data instead"
        )
    tokenizer = open_tokenizer(folder)

    def encode(words: str) -> list[int]:
        return tokenizer.encode([words])[0]

    tokens = encode(text)
    if not tokens:
        raise InterbasisError("the prompt is empty; expected at least one token")
    if tokenizer.bos is not None and tokens[0] != tokenizer.bos:
        tokens = [tokenizer.bos, *tokens]
    return Prompt(text, torch.tensor(tokens), token_names(workspace, folder), encode)


def token_names(workspace: "OpenedRun", folder: str) -> Sequence[str] | None:
    """Return the texts of a model's tokens or outputs, from the folder of a tokenizer; None without one."""
    names = workspace.network.token_names or (vocabulary(Path(folder)) if folder else [])
    # a model may have more outputs than its tokenizer has tokens
    more = range(len(names), workspace.network.output_count)
    return [*names, *map(str, more)] if names else None


def named_output(prompt: Prompt, word: str | None) -> int | None:
    """Return the output that a user names: its text, or its number.

    Raises:
        InterbasisError: The text is not one token or class.
    """
    if word is None:
        return None
    for candidate in (word, f" {word}"):
        if prompt.names is not None and candidate in prompt.names:
            return list(prompt.names).index(candidate)
    tokens = prompt.encode(word) if prompt.encode is not None else []
    # a tokenizer may have a token for all that it does not know
    if len(tokens) == 1 and prompt.output_name(tokens[0]).strip() == word.strip():
        return tokens[0]
    if word.isdecimal():
        return int(word)
    raise InterbasisError(
        f"{word!r} is not an output of the model; expected the text of one token or class, or its number"
    )


def parse_feature(graph: InteractionGraph, text: str) -> tuple[LayerBasis, int]:
    """Return `mlp_in.3:17`, or `blocks.3.ln2.hook_normalized:17`, as the basis of a layer and a number.

    Raises:
        InterbasisError: It is not of this form, or there is no such layer or feature.
    """
    named, colon, number = text.rpartition(":")
    layer = layer_name(named, graph.layer_names)
    if not colon or not number.isdecimal() or layer not in graph.layer_names:
        names = ", ".join(graph.layer_names)
        raise InterbasisError(
            f"expected a feature as LAYER:NUMBER with a layer of {names}, received {text!r}"
        )
    basis = graph.layers[graph.layer_names.index(layer)]
    if int(number) >= basis.features:
        raise InterbasisError(f"{layer!r} has features 0 to {basis.features - 1}, received {number}")
    return basis, int(number)
