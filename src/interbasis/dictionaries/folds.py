"""Exact changes of a dictionary's form: what surrounds an encoder or a decoder goes into its matrices."""

from dataclasses import replace

from torch import Tensor

from interbasis.base.errors import InterbasisError
from interbasis.dictionaries.dictionary import Dictionary

SMALLEST_NORM = 1e-8
"""Of a decoder's row, where activations are multiplied by it: as in SAELens."""


def subtract_decoder_bias(dictionary: Dictionary) -> Dictionary:
    """The encoder reads x − b_d: b_e − W_e b_d."""
    shift = dictionary.encoder @ dictionary.decoder_bias
    return replace(dictionary, encoder_bias=dictionary.encoder_bias - shift)


def scale_input(dictionary: Dictionary, scale: float) -> Dictionary:
    """The dictionary reads s·x and writes s·x̂: s·W_e, W_d/s, b_d/s."""
    return replace(
        dictionary,
        encoder=dictionary.encoder * scale,
        decoder=dictionary.decoder / scale,
        decoder_bias=dictionary.decoder_bias / scale,
    )


def multiply_by_decoder_norm(dictionary: Dictionary) -> Dictionary:
    """Pre-activations are multiplied by n = ‖W_d‖ of their rows, and decoded by W_d/n."""
    norms = dictionary.decoder.norm(dim=-1).clamp(min=SMALLEST_NORM)
    return replace(
        dictionary,
        encoder=dictionary.encoder * norms[:, None],
        encoder_bias=dictionary.encoder_bias * norms,
        decoder=dictionary.decoder / norms[:, None],
    )


def read_before_gain(dictionary: Dictionary, gain: Tensor, bias: Tensor | None = None) -> Dictionary:
    """The dictionary was trained on g ∘ x + β, what a norm gives, and now reads x, before the norm's gain
    and bias.

    W_e diag(g), b_e + W_e β; a skip likewise. A transcoder's output stays what it is; otherwise x̂ is before
    the gain, too: W_d/g, (b_d − β)/g.

    Args:
        dictionary: The dictionary.
        gain: g [d_in].
        bias: β [d_in]; None is 0.

    Returns:
        The dictionary.

    Raises:
        InterbasisError: The gain has another width, or cannot be undone.
    """
    width = dictionary.encoder.shape[1]
    for name, value in (("gain", gain), ("bias", bias)):
        if value is not None and tuple(value.shape) != (width,):
            raise InterbasisError(
                f"expected the norm's {name} with {width} numbers, the width of what the dictionary reads, "
                f"received the shape {list(value.shape)}; take that of the norm before its layer"
            )
    if dictionary.scaling != "none":
        raise InterbasisError(
            "expected a dictionary that reads activations as they are, to fold a norm's gain into it, "
            f"received one that rescales every token ({dictionary.scaling}); load it without the gain"
        )
    gain = gain.detach().to(dictionary.encoder)
    shift = gain.new_zeros(width) if bias is None else bias.detach().to(gain)
    read = replace(
        dictionary,
        encoder=dictionary.encoder * gain,
        encoder_bias=dictionary.encoder_bias + dictionary.encoder @ shift,
    )
    if dictionary.skip is not None:
        read = replace(
            read,
            skip=dictionary.skip * gain,
            decoder_bias=dictionary.decoder_bias + dictionary.skip @ shift,
        )
    if dictionary.is_transcoder:
        return read
    if (gain == 0).any():
        raise InterbasisError(
            "expected a norm's gain without zeros, since what the dictionary decodes is divided by it, "
            f"received {int((gain == 0).sum())}; load it without the gain"
        )
    return replace(
        read,
        decoder=read.decoder / gain,
        decoder_bias=(read.decoder_bias - shift) / gain,
        skip=None if read.skip is None else read.skip / gain[:, None],
    )
