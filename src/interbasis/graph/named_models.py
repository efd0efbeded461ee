"""Models and data by name, as the command line and configs spell them.

    models   modadd[:PATH]  cifar10-conv[:PATH]  mlp:PATH  hf:FOLDER-OR-HUB-ID  python:MODULE:FUNCTION
    data     modadd  cifar10[:PATH]  mnist[:PATH]  images:FOLDER  tokens:PATH  text:PATH  hf:DATASET  npz:PATH

Options follow a data spec's path after commas, `tokens:stories.uint16,context=256,bos=1`: samples=N takes the
first N of any data; classes=FILE names the classes of images and rows, a line each; the options of tokens and
text are the fields of `interbasis.data.windows.Windows`, and part, column, tokenizer, stream and revision
(`interbasis.data.streams`).
"""

import importlib
import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import ModuleType

from torch import nn

from interbasis.base.errors import Explained, InterbasisError
from interbasis.base.memory import collecting_later
from interbasis.base.messages import logger
from interbasis.compute.team import Team
from interbasis.data import arrays, cifar10, images, mnist, streams
from interbasis.data.modadd import FRACTION
from interbasis.data.modadd import split as split_pairs
from interbasis.data.samples import Samples, Split
from interbasis.graph.named_sources import SHIPPED_MODELS, source_location, split_options
from interbasis.models import mlp, modadd, residual
from interbasis.models.module import from_torch
from interbasis.network.network import Network

WEIGHTS = Path(__file__).parents[1] / "weights"
SHIPPED = modadd.SHIPPED
SHIPPED_CONV = WEIGHTS / "cifar10-conv-seed0.safetensors"
MODELS = (
    "modadd:PATH, cifar10-conv:PATH (without a path, those that are shipped), mlp:PATH, "
    "hf:FOLDER-OR-HUB-ID or python:MODULE:FUNCTION"
)
DATA = "modadd, cifar10[:PATH], mnist[:PATH], images:FOLDER, tokens:PATH, text:PATH, hf:DATASET or npz:PATH"
MAX_DEFAULT_POSITIONS = 1024
"""Positions of a sample where neither the data's spec nor a smaller model says how many."""


@dataclass(frozen=True)
class Model:
    """A model that was named, with the data that go with it."""

    spec: str
    network: Network
    data_spec: str = ""
    """The data it was trained on, where that is known."""
    context: int | None = None
    """Positions it was made for, where it has positions."""
    tokenizer: str = ""
    """Folder or Hub id of its tokenizer, where it has one."""

    @cached_property
    def data(self) -> Samples:
        """The training data that go with it."""
        return self.open_data()

    def open_data(
        self, spec: str | None = None, split: Split = "train", at_most: int | None = None
    ) -> Samples:
        """Data for this model: those named, or those it was trained on; a stream up to so many samples."""
        if spec is None and not self.data_spec:
            raise InterbasisError(
                f"{self.spec} does not say what it was trained on; name data with --data: {DATA}"
            )
        spec = self.data_spec if spec is None else spec
        return open_data(spec, split, context=self.context, tokenizer=self.tokenizer, at_most=at_most)


def open_model(spec: str, memory: int | None = None, folder: Path | None = None) -> Model:
    """A model by name; see the head of this file. Two names alone are models that come with interbasis.

    Blocks of a Hugging Face model that would take more than half of ``memory`` stay in their files. Modules
    are looked for in ``folder``, too.
    """
    family, _, name = spec.partition(":")
    if family == "hf" and name:
        return _from_hub(spec, name, memory)
    if family == "python" and name:
        return _from_python(spec, name, folder)
    if family in MODEL_FAMILIES and (name or spec in SHIPPED_MODELS):
        return MODEL_FAMILIES[family](spec, name)
    raise InterbasisError(f"expected a model as {MODELS}, received {spec!r}")


def _shipped_or_file(spec: str, path: str) -> Model:
    file = Path(path) if path else SHIPPED
    if not file.is_file():
        raise InterbasisError(f"expected a safetensors checkpoint at {file}, but there is no such file")
    network = modadd.load(file)
    p = modadd.modulus(network)
    data, fraction = "modadd" if p == 113 else f"modadd,p={p}", modadd.training_fraction(file)
    if fraction != FRACTION:
        data += f",fraction={fraction}"
    return Model(spec, network, data, context=3)


def _residual(spec: str, path: str) -> Model:
    module, data = residual.load_module(path or SHIPPED_CONV)
    return Model(spec, residual.network(module), data)


def _mlp(spec: str, path: str) -> Model:
    return Model(spec, mlp.load(path), mlp.training_data(path))


def open_data(
    spec: str,
    split: Split = "train",
    *,
    context: int | None = None,
    tokenizer: str = "",
    at_most: int | None = None,
) -> Samples:
    """Labelled data by name: `Samples`, which `Batches` and everything built on it take as they are.

    ``split`` is the training or the test set. ``context`` and ``tokenizer`` are the model's, for token data
    whose spec does not name its own; the result's ``spec`` names them, so that it opens the same data alone.
    Of a stream whose spec does not say samples=N, ``at_most`` so many are looked at.
    """
    if split not in ("train", "test"):
        raise InterbasisError(f"a split is train or test, not {split!r}")
    named, options = split_options(spec)
    family, _, path = named.partition(":")
    samples = _integer(spec, "samples", options.pop("samples", None))
    if family in STREAMS and path:
        if context is not None or tokenizer:
            most = MAX_DEFAULT_POSITIONS if context is None else context
            wanted = options.setdefault("context", str(min(most, MAX_DEFAULT_POSITIONS)))
            if context is not None and wanted.isdecimal() and int(wanted) > context:
                logger.warning(f"samples of {wanted} positions, but the model was made for at most {context}")
        whole = streams.load(family, path, split, options, tokenizer, samples or at_most)
        return whole if samples is None else first_samples(whole, samples)
    if family == "modadd" and not path:
        p, fraction = _integer(spec, "p", options.pop("p", None)), options.pop("fraction", str(FRACTION))
        with Explained(f"{spec!r}: could not read fraction as a number", ValueError):
            pairs = split_pairs(p or 113, float(fraction))[0 if split == "train" else 1]
        whole = Samples.from_tensors(*pairs, classes=tuple(map(str, range(p or 113))))
    elif family in IMAGES:
        whole = IMAGES[family](path or None, split)
    elif family == "images" and path:
        whole = images.load(path, split)
    elif family == "npz" and path:
        whole = arrays.load(path, split)
    else:
        raise InterbasisError(f"expected data as {DATA}, received {spec!r}")
    if "classes" in options:
        whole = replace(whole, classes=_class_names(options.pop("classes")))
    if options:
        raise InterbasisError(
            f"{spec!r}: {family} data have no option {next(iter(options))!r}; the options are samples=N and "
            "classes=FILE"
        )
    return replace(whole.head(samples), spec=spec)


def first_samples(data: Samples, count: int) -> Samples:
    """The first so many samples, named so that they can be had again."""
    return replace(data.head(count), spec=f"{data.spec},samples={count}")


def at_one_commit(data: Samples, team: Team, reopen: Callable[[str], Samples]) -> Samples:
    """Streamed data at the commit that the first process of a team found, for all of its processes."""
    if not data.revision:
        return data
    _, values = team.once("revision", lambda: ({}, {"spec": data.spec}))
    return data if values["spec"] == data.spec else reopen(str(values["spec"]))


def _class_names(path: str) -> tuple[str, ...]:
    """Names of classes from a text file, a line each."""
    with Explained(f"could not read the names of classes in {path}", OSError, UnicodeDecodeError):
        names = tuple(line.strip() for line in Path(path).read_text(encoding="utf-8").splitlines())
    if not names or not all(names):
        raise InterbasisError(f"expected the names of the classes in {path}, a line each and none empty")
    return names


def _integer(spec: str, name: str, text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isdecimal() or int(text) < 1:
        raise InterbasisError(f"{spec!r}: {name} is a whole number of at least 1, not {text!r}")
    return int(text)


def hub_options(spec: str, name: str) -> tuple[str, str | None, bool, str | None]:
    """`NAME,blocks=4-6` of a Hugging Face model: its name, and the options blocks, output and head."""
    name, options = split_options(name)
    blocks, output, head = (options.pop(key, default) for key, default in HUB_OPTIONS.items())
    if options or output not in ("yes", "no") or head not in (None, "tokens", "mean", "pooled"):
        odd = next(iter(options), f"output={output}" if output not in ("yes", "no") else f"head={head}")
        raise InterbasisError(
            f"{spec!r}: models have no option {odd!r}; the options are blocks=FIRST-LAST, "
            "output=yes and head=tokens, head=mean or head=pooled"
        )
    return name, blocks, output == "yes", head


@collecting_later()
def _from_hub(spec: str, name: str, memory: int | None = None) -> Model:
    """A Hugging Face model, `hf:NAME,blocks=4-6` or `hf:NAME,output=yes` for other node layers."""
    name, blocks, output, head = hub_options(spec, name)
    try:
        from interbasis.models.hf.load import exceeds, from_hf
        from interbasis.models.hf.reading import context_length
    except (ImportError, AttributeError) as error:
        raise InterbasisError(
            f"{spec} requires the transformers package; install it with: pip install 'interbasis[hf]'"
        ) from error
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # it logs every attempt to connect
    if not sys.stderr.isatty():
        from transformers.utils.logging import disable_progress_bar

        disable_progress_bar()
    network = from_hf(
        name,
        blocks,
        output=output,
        head=head,  # type: ignore[arg-type]
        stored=memory is not None and exceeds(name, memory // 2),
    )
    return Model(spec, network, context=context_length(name), tokenizer=name)


def _from_python(spec: str, path: str, folder: Path | None = None) -> Model:
    """Call MODULE:FUNCTION of an importable module, or of one in the working directory or ``folder``."""
    module_name, _, function_name = path.partition(":")
    names = [*module_name.split("."), function_name]
    if not all(name.isidentifier() for name in names):
        raise InterbasisError(f"expected a model as python:MODULE:FUNCTION, received '{spec}'")
    module = _imported(module_name, folder)
    function = getattr(module, function_name, None)
    if function is None:
        raise InterbasisError(f"the module {module_name} has no {function_name}")
    if not callable(function):
        raise InterbasisError(f"{path} is a {type(function).__name__}, not a function")
    try:
        result = function()
    except InterbasisError:
        raise
    except Exception as error:  # somebody else's code
        raise InterbasisError(f"{path}() failed with {type(error).__name__}: {_first_line(error)}") from error
    if isinstance(result, Network):
        return Model(spec, result)
    if isinstance(result, nn.Module):
        return Model(spec, from_torch(result))
    if isinstance(result, tuple) and len(result) == 2 and isinstance(result[0], nn.Module):
        return Model(spec, from_torch(result[0], result[1]))
    raise InterbasisError(
        f"{path}() returned {type(result).__name__}, expected an interbasis Network, a torch module, or a "
        "pair (module, example)"
    )


def _imported(name: str, folder: Path | None) -> ModuleType:
    """Import a module; those in the working folder, or in ``folder``, are found, too."""
    here, place = Path.cwd(), source_location(f"python:{name}", folder)
    # an installed model must not import what lies in any folder that a command is started from
    if "" not in sys.path and str(here) not in sys.path and (not place or here in Path(place).parents):
        sys.path.insert(0, str(here))
    if folder is not None and sys.path[0] != str(folder) and folder in Path(place).parents:
        sys.path.insert(0, str(folder))
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise InterbasisError(f"could not import {name} ({error}); is it on the Python path?") from error
    except Exception as error:  # somebody else's code
        raise InterbasisError(
            f"importing {name} failed with {type(error).__name__}: {_first_line(error)}"
        ) from error


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or ["no message"])[0]


HUB_OPTIONS: dict[str, str | None] = {"blocks": None, "output": "no", "head": None}
"""Options of a Hugging Face model, with their defaults."""
MODEL_FAMILIES: dict[str, Callable[[str, str], Model]] = {
    "modadd": _shipped_or_file,
    "cifar10-conv": _residual,
    "mlp": _mlp,
    "hf": _from_hub,
    "python": _from_python,
}
"""Functions that open a model, by the first word of its name."""
IMAGES: dict[str, Callable[[str | None, Split], Samples]] = {"cifar10": cifar10.load, "mnist": mnist.load}
"""Data sets of images, which are downloaded where no path is given."""
STREAMS = ("tokens", "text", "hf")
"""Data whose samples are windows of one long text."""
