"""Sets of transcoders of circuit-tracer: a folder with `config.yaml` and `layer_0.safetensors`, `layer_1…`.

    z = act(W_e x + b_e), act: relu, jumprelu (u where u > θ) or topk (the k largest u, whatever their sign)
    x̂ = W_dᵀ z + b_d (+ S x)

W_enc and W_dec are [features, d], so that rows of features can be read without the rest of the file.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from interbasis.base.errors import InterbasisError
from interbasis.dictionaries.dictionary import Dictionary
from interbasis.dictionaries.files import FileConfig, Tensors, digest, read_config, reading

CONFIG = "config.yaml"
FILE = re.compile(r"layer_(\d+)\.safetensors")
THRESHOLD = "activation_function.threshold"


class TranscoderSetConfig(FileConfig):
    """The fields of `config.yaml` that a set needs."""

    model_kind: str
    feature_input_hook: str
    feature_output_hook: str
    activation: str | None = None
    k: int | None = None
    model_name: str | None = None


@dataclass(frozen=True)
class TranscoderSet:
    """A folder with a transcoder for every layer, of which tensors and rows are read when they are asked
    for."""

    folder: Path
    config: TranscoderSetConfig
    layers: tuple[int, ...]
    """Numbers of the layers that have a file."""

    @classmethod
    def from_folder(cls, folder: str | Path) -> "TranscoderSet":
        """Open a set; no tensor is read.

        Args:
            folder: With `config.yaml` and the files of its layers.

        Returns:
            The set.

        Raises:
            InterbasisError: It is incomplete, or a cross-layer transcoder.
        """
        folder = Path(folder)
        config = read_config(folder / CONFIG, TranscoderSetConfig, _parse_yaml)
        if config.model_kind != "transcoder_set":
            what = (
                "a cross-layer transcoder, whose features write to several layers"
                if config.model_kind == "cross_layer_transcoder"
                else repr(config.model_kind)
            )
            raise InterbasisError(
                f"expected a transcoder_set in {folder}, received {what}; choose a set with a transcoder per "
                "layer"
            )
        if config.activation not in (None, "relu", "jumprelu", "topk"):
            raise InterbasisError(
                f"expected the activation relu, jumprelu or topk in {folder / CONFIG}, received "
                f"{config.activation!r}; choose another set of transcoders"
            )
        if config.activation == "topk" and (config.k is None or config.k < 1):
            raise InterbasisError(
                "expected k, the number of active features, beside the activation topk in "
                f"{folder / CONFIG}, received {config.k}; add the k that the transcoders were trained with"
            )
        layers = tuple(sorted(int(m[1]) for file in folder.iterdir() if (m := FILE.fullmatch(file.name))))
        if not layers:
            raise InterbasisError(
                f"expected layer_0.safetensors and so on beside {CONFIG} in {folder}, received none; "
                "download the transcoders that it lists, with circuit-tracer's cache for example"
            )
        return cls(folder, config, layers)

    def __len__(self) -> int:
        return len(self.layers)

    def dictionary(self, layer: int, dtype: torch.dtype | None = None) -> Dictionary:
        """The transcoder of a layer, all of it.

        Args:
            layer: Number of the block.
            dtype: Of its tensors; by default that of the file, float32 at least.

        Returns:
            The dictionary.

        Raises:
            InterbasisError: There is no such layer, or its file is cut.
        """
        path = self._path(layer)
        tensors = Tensors.read(path, dtype)
        features, width = tensors.shape("W_enc", 2)
        width_out = tensors.shape("W_dec", 2)[1]
        active, threshold = None, None
        if self.config.activation == "topk":
            active = min(self.config.k or features, features)
            threshold = torch.full((features,), -torch.inf, dtype=tensors.dtype)
        elif self.config.activation != "relu" and THRESHOLD in tensors:
            threshold = tensors.threshold(THRESHOLD, features)
        elif self.config.activation == "jumprelu":
            threshold = tensors.threshold(THRESHOLD, features)  # says that it is missing
        return Dictionary(
            encoder=tensors.take("W_enc", features, width),
            encoder_bias=tensors.take("b_enc", features),
            decoder=tensors.take("W_dec", features, width_out),
            decoder_bias=tensors.take("b_dec", width_out),
            threshold=threshold,
            active=active,
            skip=tensors.take("W_skip", width_out, width) if "W_skip" in tensors else None,
            hook=f"blocks.{layer}.{self.config.feature_input_hook}",
            output_hook=f"blocks.{layer}.{self.config.feature_output_hook}",
            name=f"{self.folder.absolute().name}/layer_{layer}",
            model=self.config.model_name or "",
            digest=digest(path, self.folder / CONFIG),
        )

    def encoder_rows(self, layer: int, features: Sequence[int]) -> Tensor:  # [features, d_in]
        """Rows of W_e, in the file's dtype; nothing else of the file is read."""
        return self._rows(layer, "W_enc", features)

    def decoder_rows(self, layer: int, features: Sequence[int]) -> Tensor:  # [features, d_out]
        """Rows of W_d, in the file's dtype; nothing else of the file is read."""
        return self._rows(layer, "W_dec", features)

    def _path(self, layer: int) -> Path:
        if layer not in self.layers:
            raise InterbasisError(
                f"there is no transcoder of layer {layer} in {self.folder}; it has {_ranges(self.layers)}"
            )
        return self.folder / f"layer_{layer}.safetensors"

    def _rows(self, layer: int, name: str, features: Sequence[int]) -> Tensor:
        path = self._path(layer)
        with reading(path, "a safetensors file"), safe_open(path, "pt") as file:
            if name not in file.keys():  # noqa: SIM118 - it is no mapping
                raise ValueError(f"it has no tensor {name}")
            tensor = file.get_slice(name)
            count, width = tensor.get_shape()
            for feature in features:
                if not 0 <= feature < count:
                    raise InterbasisError(
                        f"there is no feature {feature} in layer {layer} of {self.folder}; it has 0 to "
                        f"{count - 1}"
                    )
            rows = [tensor[feature : feature + 1] for feature in features]
            return torch.cat(rows) if rows else tensor[0:0].reshape(0, width)


def _ranges(layers: Sequence[int]) -> str:
    whole = tuple(range(layers[0], layers[-1] + 1)) == tuple(layers)
    return f"{layers[0]} to {layers[-1]}" if whole and len(layers) > 1 else ", ".join(map(str, layers))


def _parse_yaml(text: str) -> object:
    try:
        import yaml
    except ImportError as error:
        raise InterbasisError(f"reading the {CONFIG} of transcoders needs PyYAML; install it") from error
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(" ".join(str(error).split())) from error
