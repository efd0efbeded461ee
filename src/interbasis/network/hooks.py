"""TransformerLens' names of the places that node layers are: `blocks.3.hook_resid_pre` is `ln1.3`.

    ln1.k       blocks.k.hook_resid_pre          ln2.k       blocks.k.hook_resid_mid
    ln1_out.k   blocks.k.ln1.hook_scale          ln2_out.k   blocks.k.ln2.hook_scale
    attn_in.k   blocks.k.ln1.hook_normalized     mlp_in.k    blocks.k.ln2.hook_normalized

    ln_final  blocks.LAST.hook_resid_post   ln_final_out  ln_final.hook_scale
    unembed   ln_final.hook_normalized

Where a model has no norms, `attn_in.k`, `mlp_in.k` and `unembed` hold the residual stream itself. A node
layer holds every stream that crosses its cut: `attn_in.k` has the residual stream beside what the hook sees,
and `ln1_out.k` the variance, where TransformerLens' scale is √(variance + ε). What a hook sees is before the
norm's gain and bias. `hook_resid_post` of a block is `hook_resid_pre` of the next.
"""

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches

from interbasis.base.errors import InterbasisError

NORMED = {
    "ln1": "hook_resid_pre",
    "ln1_out": "ln1.hook_scale",
    "attn_in": "ln1.hook_normalized",
    "ln2": "hook_resid_mid",
    "ln2_out": "ln2.hook_scale",
    "mlp_in": "ln2.hook_normalized",
}
UNNORMED = {"attn_in": "hook_resid_pre", "mlp_in": "hook_resid_mid"}
"""Hooks of a block, by the part of a node layer's name before the block's number."""
FINAL = {"ln_final_out": "ln_final.hook_scale", "unembed": "ln_final.hook_normalized"}
NORMS = ("ln1", "ln1_out", "ln2", "ln2_out", "ln_final", "ln_final_out")


def hook_names(layers: Sequence[str]) -> dict[str, str]:
    """TransformerLens' names of the node layers of a transformer; layers without such a name are left out.

    Args:
        layers: Names of node layers.

    Returns:
        {node layer: hook}.
    """
    numbered = {name: match.groups() for name in layers if (match := re.fullmatch(r"(\w+)\.(\d+)", name))}
    blocks = [int(number) for part, number in numbered.values() if part in NORMED]
    normed = any(name.partition(".")[0] in NORMS for name in layers)
    known = _block_hooks(layers, {part for part, _ in numbered.values()}) if normed else UNNORMED
    hooks = {name: f"blocks.{k}.{known[part]}" for name, (part, k) in numbered.items() if part in known}
    post = f"blocks.{max(blocks)}.hook_resid_post" if blocks else None
    stream_at_the_end = "ln_final" if normed else "unembed"
    if post is not None and stream_at_the_end in layers:
        hooks[stream_at_the_end] = post
    if normed:
        hooks |= {name: hook for name, hook in FINAL.items() if name in layers}
    return {name: hooks[name] for name in layers if name in hooks}


def _block_hooks(layers: Sequence[str], parts: set[str]) -> Mapping[str, str]:
    """Hooks of parts of blocks; where norms follow the branches alone (OLMo 2), branches read the stream."""
    if parts & {"ln1", "ln1_out", "ln2", "ln2_out"} or not parts & {"post1", "post2"}:
        return NORMED
    whole = any(name.startswith("attn_in.") and name.replace("attn", "mlp") in layers for name in layers)
    return UNNORMED if whole else {}


def layer_name(name: str, layers: Sequence[str]) -> str:
    """Return the node layer that a name or a hook name means; a name that is neither is returned as it is."""
    if name in layers:
        return name
    match = re.fullmatch(r"blocks\.(\d+)\.hook_resid_post", name)
    following = f"blocks.{int(match[1]) + 1}.hook_resid_pre" if match else name
    by_hook: Mapping[str, str] = {hook: layer for layer, hook in hook_names(layers).items()}
    return by_hook.get(name) or by_hook.get(following) or name


def node_layer(name: str, layers: Sequence[str]) -> str:
    """The node layer that a name or a hook name means.

    Raises:
        InterbasisError: There is no such node layer.
    """
    layer = layer_name(name, layers)
    if layer in layers:
        return layer
    near = get_close_matches(name, [*layers, *hook_names(layers).values()], n=1, cutoff=0)
    raise InterbasisError(
        f"there is no node layer {name!r}; did you mean {near[0]!r}? The network has {', '.join(layers)}"
    )
