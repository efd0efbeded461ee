"""Where a dictionary reads and writes: hook names of TransformerLens, and the node layers that they are.

A hook of which a network has no node layer (the outputs of MLPs and attention, the input of an MLP after its
norm's gain) keeps its name.
"""

import re
from collections.abc import Sequence
from dataclasses import replace

from interbasis.base.errors import InterbasisError
from interbasis.base.messages import logger
from interbasis.dictionaries.dictionary import Dictionary
from interbasis.network.hooks import layer_name

MLP_OUTPUT = "hook_mlp_out"
"""What a transcoder stands for where its file does not say so."""


def place(dictionary: Dictionary, hook: str, output_hook: str, layers: Sequence[str]) -> Dictionary:
    """The dictionary with the names of where it reads and writes.

    Args:
        dictionary: The dictionary, with the names that its file has.
        hook: Where it reads, in place of the file's; empty leaves that.
        output_hook: Where it writes, likewise.
        layers: Names of a network's node layers, which replace hook names where they can.

    Returns:
        The dictionary.

    Raises:
        InterbasisError: It reads or writes the values of heads.
    """
    hook = hook or dictionary.hook
    output_hook = output_hook or dictionary.output_hook
    if output_hook == MLP_OUTPUT and (block := re.match(r"(?:blocks|ln2|mlp_in)\.(\d+)", hook)):
        output_hook = f"blocks.{block[1]}.{MLP_OUTPUT}"
    for name in (hook, output_hook):
        if name.endswith("hook_z"):
            raise InterbasisError(
                f"{name} is the heads' values before they are written to the residual stream, which are no "
                "node layer; choose a dictionary of the attention's output or of the residual stream"
            )
    found = [layer_name(name, layers) if name and layers else name for name in (hook, output_hook)]
    for name in found:
        if name and layers and name not in layers:
            logger.info(f"{name} is no node layer of the network; the dictionary keeps this name")
    return replace(dictionary, hook=found[0], output_hook=found[1])
