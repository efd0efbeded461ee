"""Dictionaries of a network's node layers, from data to files.

1. Survey: norms of the first tokens decide which tokens count.
2. Metric: LIB or GIB from the last layer to the first, or the Fisher metric of the output.
3. For every layer: its activations go to a file, a dictionary is trained on tokens drawn from it.
4. The dictionaries are written in SAELens' format, a folder each.

Layers are divided among the processes of a team. Killed at any moment, the same call goes on and ends with
the same bits.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from pydantic import ValidationError
from torch import Tensor

from interbasis.base.errors import InterbasisError, first_problem
from interbasis.base.files import inside, write_text_atomically
from interbasis.base.json_text import parse_json
from interbasis.base.messages import logger
from interbasis.base.progress import Progress, progress_bar
from interbasis.compute.checkpoints import Checkpoints, State, environment
from interbasis.compute.executor import Executor, most_blocks
from interbasis.compute.locks import building
from interbasis.compute.team import ALONE, Team, team_checkpoints
from interbasis.data.batches import Batches, Data
from interbasis.dictionaries.dictionary import Dictionary
from interbasis.dictionaries.fisher import FisherPass, fisher_grams
from interbasis.dictionaries.jacobian_penalty import PointwiseMap
from interbasis.dictionaries.metrics import basis_gram, metric_matrix
from interbasis.dictionaries.sae_lens import save
from interbasis.dictionaries.settings import DictionarySettings, LayerTraining, MetricKind, TrainingRecord
from interbasis.dictionaries.streams import StreamPlace, store_activations
from interbasis.dictionaries.training import LayerEnd, fit, fit_pair
from interbasis.graph.settings import DEFAULT_NORM_LIMIT, BuildConfig
from interbasis.lib.build import build, with_network_defaults
from interbasis.lib.build_data import BuildData
from interbasis.lib.counted_tokens import ALL_TOKENS, CountedTokens
from interbasis.lib.survey import survey
from interbasis.network.hooks import hook_names
from interbasis.network.network import Network

RECORD = "training.json"
"""In the folder of dictionaries, written when all of them are."""
TASK = "dictionaries"
REPORTS = 10
"""Lines about loss and dead features in the course of a training."""
MAX_METRIC_QUERIES = 32
"""Query positions per sequence that Jacobians of attention are averaged over."""


def train(
    network: Network,
    data: Data,
    *,
    layers: str | Sequence[str],
    features: int = 512,
    active: int = 8,
    kind: str = "topk",
    metric: MetricKind = "raw",
    metric_samples: int = 200,
    jacobian_penalty: float | None = None,
    norm_limit: float | None = None,
    steps: int = 3000,
    batch: int = 2048,
    rate: float = 2e-3,
    seed: int = 0,
    out: str | Path | None = None,
    model: str = "",
    progress: Progress | bool | None = None,
    team: Team = ALONE,
) -> dict[str, Dictionary]:
    """Train sparse dictionaries of node layers.

    Args:
        network: The network.
        data: Inputs, as `interbasis.build` takes them; tokens are drawn from all of them.
        layers: Names of node layers, or hook names of TransformerLens.
        features: Number of features of each dictionary.
        active: Features that are active at a token; with batchtopk, on average.
        kind: "topk", the largest pre-activations of every token, or "batchtopk", of every batch.
        metric: Metric of the error: "raw" (the usual squares), "lib", "root", "both", "gib" or "fisher".
        metric_samples: Samples that the metric is averaged over, the first of the data.
        jacobian_penalty: Weight of the mean |∂z′/∂z| of active features, for two neighbouring layers around
            an MLP, so that edges become sparse, too; default: none.
        norm_limit: Leave out tokens whose norm exceeds this many times the median of their layer; 0 leaves
            none out. Default: 3 for language models, else 0.
        steps: Steps of training.
        batch: Tokens per step.
        rate: Learning rate of Adam.
        seed: Random seed.
        out: Folder to write the dictionaries to, one folder per layer, in SAELens' format. Unfinished work is
            stored there: training that was killed resumes when it is called again, with the same result.
        model: A name to remember the model by.
        progress: Show progress: True, False, a function, or None: bars on a terminal, else lines.
        team: The processes that share the layers; all of them call `train`, and all receive the dictionaries.

    Returns:
        {node layer: dictionary}.

    Raises:
        InterbasisError: A setting is out of range, or the folder holds other dictionaries.
    """
    settings = DictionarySettings.validated(
        layers=layers, features=features, active=active, kind=kind, metric=metric,
        metric_samples=metric_samples, jacobian_penalty=jacobian_penalty, norm_limit=norm_limit, steps=steps,
        batch=batch, rate=rate, seed=seed,
    )  # fmt: skip
    folder = None if out is None else Path(out)
    return train_dictionaries(network, data, settings, folder, model=model, progress=progress, team=team)[0]


def train_dictionaries(
    network: Network,
    data: Data,
    settings: DictionarySettings,
    folder: Path | None = None,
    *,
    model: str = "",
    data_name: str = "",
    progress: Progress | bool | None = None,
    team: Team = ALONE,
) -> tuple[dict[str, Dictionary], TrainingRecord]:
    """Train dictionaries and write them with a record of their training; see `train`."""
    places = [StreamPlace.from_network(network, layer) for layer in settings.layers]
    if len({place.index for place in places}) < len(places):
        raise InterbasisError(f"expected every node layer once, received {', '.join(settings.layers)}")
    if settings.jacobian_penalty is not None:
        places = _pair(network, settings, places)
    batches = Batches(data, predicts_next=network.predicts_next)
    if batches.shuffled:
        raise InterbasisError(
            "a shuffling DataLoader changes its order with every pass; turn shuffling off, since training "
            "draws tokens at random by itself"
        )
    if settings.norm_limit is None:
        limit = DEFAULT_NORM_LIMIT if network.predicts_next else 0.0
        settings = settings.model_copy(update={"norm_limit": limit})
    settings = settings.model_copy(update={"layers": tuple(place.layer for place in places)})
    identity = {
        "model": model, "model_fingerprint": network.fingerprint(), "data": data_name,
        "data_fingerprint": batches.fingerprint(),
    }  # fmt: skip
    computing = network.to(getattr(torch, network.build_dtype))
    with _unfinished(folder, settings, identity, team) as checkpoints, progress_bar(progress) as advance:
        executor = Executor(computing, team, checkpoints, advance, blocks=most_blocks(computing))
        work = _Work(executor, batches, settings, places)
        work.prepare()
        tensors, values = team.share(TASK, len(work.together), work.train)
        dictionaries = {
            place.layer: _from_state(tensors, place.layer, values[place.layer]["active"]) for place in places
        }
        ended = {layer: LayerTraining(**values[layer]["end"]) for layer in dictionaries}
        record = TrainingRecord(**identity, settings=settings, layers=ended)
        if folder is not None:
            if team.is_first:
                _write(dictionaries, record, hook_names(network.layers), folder)
            team.wait_for_all()
            checkpoints.finish()
    return dictionaries, record


@contextmanager
def _unfinished(
    folder: Path | None, settings: DictionarySettings, identity: dict[str, str], team: Team
) -> Iterator[Checkpoints]:
    """Lock the folder, and resume what is in it."""
    decisive = settings.model_dump(mode="json") | identity | environment()
    with building(folder, "dictionary train", team):
        if folder is not None and (folder / RECORD).exists():
            raise InterbasisError(f"{folder} holds dictionaries already; name a new folder")
        yield team_checkpoints(folder, TASK, decisive, team)


def _pair(network: Network, settings: DictionarySettings, places: list[StreamPlace]) -> list[StreamPlace]:
    """The two layers that are trained with a penalty on their Jacobian, in the network's order."""
    if len(places) != 2 or settings.kind != "topk":
        raise InterbasisError(
            "a penalty on Jacobians requires kind topk and two neighbouring layers around an MLP, received "
            f"{settings.kind} and {', '.join(settings.layers)}"
        )
    places = sorted(places, key=lambda place: place.index)
    PointwiseMap.from_network(network, *places)  # refused before any work
    return places


@dataclass(eq=False)
class _Work:
    """Trains dictionaries of layers one after the other."""

    executor: Executor
    batches: Batches
    settings: DictionarySettings
    places: Sequence[StreamPlace]
    counted: CountedTokens = ALL_TOKENS
    grams: dict[str, Tensor] = field(default_factory=dict)
    """G or F of every layer, as the metric requires it."""

    @property
    def together(self) -> list[list[StreamPlace]]:
        """Layers whose dictionaries are trained together."""
        if self.settings.jacobian_penalty is not None:
            return [list(self.places)]
        return [[place] for place in self.places]

    def prepare(self) -> None:
        """Find the tokens that count, and the metric; all processes do it together."""
        if self.settings.norm_limit:
            self.counted = survey(self.batches, 0, self.settings.norm_limit, self.executor).counted
        network, metric = self.executor.network, self.settings.metric
        data = self.batches.head(min(self.settings.metric_samples, len(self.batches)))
        if metric == "fisher":
            fisher = FisherPass(network, self.places, self.counted, self.settings.seed)
            self.grams = fisher_grams(self.executor.run(fisher, data), self.places)
        elif metric != "raw":
            config = BuildConfig.validated(
                basis="gib" if metric == "gib" else "lib", edge_method=None, seed=self.settings.seed,
                norm_limit=self.settings.norm_limit, jacobian_queries=self._queries(data),
            )  # fmt: skip
            graph = build(
                network, BuildData(data, data, data), with_network_defaults(network, config), self.executor
            )
            self.grams = {
                place.layer: basis_gram(graph.layers[place.index], place.columns) for place in self.places
            }

    def _queries(self, data: Batches) -> int | None:
        """Query positions that are sampled; None where the sequences are short."""
        positions = self.executor.network.prefix(data.first().to(self.executor.network.device)).shape[1]
        return MAX_METRIC_QUERIES if positions > MAX_METRIC_QUERIES else None

    def train(self, numbers: Sequence[int]) -> State:
        """Dictionaries of the layers of these numbers, as tensors and values by layer."""
        tensors: dict[str, Tensor] = {}
        values: dict[str, object] = {}
        for places in (self.together[number] for number in numbers):
            name = "+".join(place.layer for place in places)
            stored = self.executor.checkpoints.within(name)
            trained, ended = self.executor.checkpoints.remember(
                f"trained.{name}", partial(self._train_layers, name, places, stored)
            )
            stored.forget()
            tensors |= trained
            values |= ended
        return tensors, values

    def _train_layers(self, name: str, places: Sequence[StreamPlace], stored: Checkpoints) -> State:
        settings, progress = self.settings, self.executor.progress
        ends: list[LayerEnd] = [(0.0, 0)] * len(places)

        def advance(step: int, reached: Sequence[LayerEnd], penalty: float | None = None) -> None:
            ends[:] = reached
            progress(f"{name}: training", step, settings.steps)
            if step % max(1, settings.steps // REPORTS) == 0 or step == settings.steps:
                loss = ", ".join(f"{loss:.4f}" for loss, _ in reached)
                end = "" if penalty is None else f", mean |J| {penalty:.2e}"
                logger.info(
                    f"{name}: step {step:,} of {settings.steps:,}, loss {loss}, "
                    f"{sum(dead for _, dead in reached):,} dead features{end}"
                )

        with _activation_file(stored) as file:
            x = store_activations(
                self.executor.network, places, self.batches, file,
                counted=self.counted,
                checkpoint=stored.checkpoint("activations", len(self.batches)),
                progress=lambda done: progress(f"{name}: activations", done, len(self.batches)),
            )  # fmt: skip
            rows = x.rows.split([place.width for place in places], 1)
            metrics = [self._metric(place, x.covariance, places) for place in places]
            steps = stored.checkpoint("steps", settings.steps)
            if settings.jacobian_penalty is None:
                dictionaries = [
                    fit(
                        rows[0], metrics[0], settings, steps,
                        lambda step, loss, dead: advance(step, [(loss, dead)]),
                    )
                ]  # fmt: skip
            else:
                section = PointwiseMap.from_network(self.executor.network, *places)
                pair = fit_pair(
                    (rows[0], rows[1]), (metrics[0], metrics[1]), section, settings,
                    settings.jacobian_penalty, progress=advance, checkpoint=steps,
                )  # fmt: skip
                dictionaries = list(pair)
        tensors: dict[str, Tensor] = {}
        values: dict[str, object] = {}
        for place, dictionary, (loss, dead) in zip(places, dictionaries, ends, strict=True):
            end = {"loss": loss, "dead": dead, "tokens": len(x.rows)}
            tensors |= {f"{place.layer}/{key}": tensor for key, tensor in _to_state(dictionary).items()}
            values[place.layer] = {"active": dictionary.active, "end": end}
        return tensors, values

    def _metric(self, place: StreamPlace, covariance: Tensor, places: Sequence[StreamPlace]) -> Tensor:
        """H of a layer; its covariance is a block of that of all layers that are trained together."""
        first = sum(other.width for other in places[: places.index(place)])
        columns = slice(first, first + place.width)
        gram = self.grams.get(place.layer, torch.eye(place.width, dtype=torch.float64))
        return metric_matrix(self.settings.metric, gram, covariance[columns, columns])


@contextmanager
def _activation_file(stored: Checkpoints) -> Iterator[Path]:
    """The file of a layer's activations: among its unfinished work, or in a temporary folder without it."""
    path = stored.path("activations")
    if path is None:
        with TemporaryDirectory() as folder:
            yield Path(folder) / "activations.float32"
        return
    stored.begin()
    yield path.with_suffix(".float32")


TENSORS = ("encoder", "encoder_bias", "decoder", "decoder_bias", "threshold")


def _to_state(dictionary: Dictionary) -> dict[str, Tensor]:
    return {name: tensor for name in TENSORS if (tensor := getattr(dictionary, name)) is not None}


def _from_state(tensors: dict[str, Tensor], layer: str, active: int | None) -> Dictionary:
    encoder, encoder_bias, decoder, decoder_bias = (tensors[f"{layer}/{name}"] for name in TENSORS[:4])
    return Dictionary(
        encoder, encoder_bias, decoder, decoder_bias, tensors.get(f"{layer}/threshold"), active, hook=layer,
        name=layer,
    )  # fmt: skip


def _write(
    dictionaries: dict[str, Dictionary], record: TrainingRecord, hooks: dict[str, str], folder: Path
) -> None:
    """Write a folder per layer, with its hook name where it has one, and the record after them."""
    for layer, dictionary in dictionaries.items():
        named = replace(dictionary, hook=hooks.get(layer, layer), model=record.model)
        save(named, inside(folder, layer))
    write_text_atomically(folder / RECORD, record.to_json(indent=1) + "\n")


def read_training(folder: Path) -> TrainingRecord | None:
    """The record of the training of the dictionaries in a folder; None where there is none.

    Raises:
        InterbasisError: It cannot be read.
    """
    path = folder / RECORD
    if not path.is_file():
        return None
    try:
        return TrainingRecord.model_validate(parse_json(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        reason = first_problem(error) if isinstance(error, ValidationError) else str(error)
        raise InterbasisError(f"could not read {path} ({reason}); train the dictionaries again") from error
