"""Model specifications of the command line, `family:PATH`, and the data that go with them."""

from dataclasses import dataclass
from pathlib import Path

from interbasis.data.batches import Data
from interbasis.errors import InterbasisError
from interbasis.models import modadd
from interbasis.network import Network

SHIPPED = Path(__file__).parent / "checkpoints" / "modadd-seed0.safetensors"


@dataclass(frozen=True)
class Model:
    """A model that was named on the command line, with the data its basis is fitted on."""

    spec: str
    network: Network
    data: Data


def open_model(spec: str) -> Model:
    """`modadd:PATH`, or `modadd` alone for the checkpoint that comes with interbasis."""
    family, colon, path = spec.partition(":")
    if family != "modadd" or (colon and not path):
        raise InterbasisError(
            f"expected a model as modadd:PATH (a safetensors checkpoint), or modadd for the one that comes "
            f"with interbasis, received {spec!r}; other models are built from Python with interbasis.build"
        )
    file = Path(path) if path else SHIPPED
    if not file.is_file():
        raise InterbasisError(f"expected a safetensors checkpoint at {file}, but there is no such file")
    network = modadd.load(file)
    train, _ = modadd.split(p=modadd.modulus(network))
    return Model(spec, network, train)
