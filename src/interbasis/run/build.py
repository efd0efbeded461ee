"""`interbasis.build`: from a network and data to a run in memory."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from interbasis.base.errors import InterbasisError
from interbasis.base.progress import Progress
from interbasis.base.records import Basis, Dtype, Method
from interbasis.compute.team import ALONE, Resources, Team
from interbasis.data.batches import Batches, Data
from interbasis.dictionaries.dictionary import Dictionary
from interbasis.graph.settings import BuildConfig, BuildTarget
from interbasis.lib.build_data import BuildData
from interbasis.network.network import Network
from interbasis.run.dictionary_run import DictionaryRun, execute_between
from interbasis.run.execution import Execution, execute
from interbasis.run.run import Run, record_from


def build(
    network: Network,
    data: Data,
    *,
    error: float | str | None = None,
    time: float | str | None = None,
    exact: bool = False,
    dictionaries: Mapping[str, Dictionary | str | Path] | None = None,
    only_dictionaries: bool = True,
    basis: Basis = "lib",
    jacobian_data: Data | None = None,
    edge_data: Data | None = None,
    test_data: Data | None = None,
    rotate_last: bool | None = None,
    threshold: float = 1e-15,
    relative_threshold: float | None = None,
    statistics_samples: int | None = None,
    jacobian_sources: int | None = None,
    jacobian_queries: int | None = None,
    jacobian_samples: int | None = None,
    isolate: bool = True,
    skip_positions: int = 0,
    norm_limit: float | None = None,
    isolate_largest: bool = False,
    edge_method: Method | Literal["none"] | None = "gradient",
    edge_points: int = 16,
    edge_group: int | Literal["positions"] | None = None,
    edge_sources: int = 2,
    edge_positions: int | None = None,
    edge_samples: int | Sequence[int] | None = None,
    seed: int = 0,
    dtype: Dtype | None = None,
    model: str = "",
    model_name: str = "",
    class_names: Sequence[str] = (),
    feature_names: Sequence[str] = (),
    resume: str | Path | None = None,
    restart: bool = False,
    memory: int | str | None = None,
    device: str | None = None,
    cache_gigabytes: float = 4.0,
    progress: Progress | bool | None = None,
    team: Team = ALONE,
) -> Run:
    """Find the basis of every node layer and the edges between neighbours.

    Args:
        network: The network; `interbasis.from_torch` and `interbasis.from_hf` make one.
        data: A tensor of inputs, a pair (inputs, labels), a list of batches of either, or a DataLoader; the
            build ignores labels, analyses of the run use them.
        error: Relative error to reach, such as 0.05 or "5%", in every layer and section: a short trial
            chooses what is sampled. Default: exact where that takes under a minute or the network is no
            language model, else 5 %.
        time: Seconds to take, or such as "10min": the smallest error within them.
        exact: Sample nothing.
        dictionaries: Sparse dictionaries or their files, by place: a node layer (`ln1.3`, or TransformerLens'
            name), the output of attention or an MLP (`attn_out.3`, `mlp_out.3`), for a transcoder the node
            layer that it reads; "lib" for LIB's basis of a node layer. The graph is then between their
            features, and a `DictionaryRun` is returned.
        only_dictionaries: Pass through node layers without a dictionary; False gives those between the first
            and the last dictionary LIB's basis.
        basis: "lib", "gib", "jib", "pca", "neuron" or "random".
        jacobian_data: Data over which Jacobians are averaged; default: ``data``.
        edge_data: Data over which edges are averaged; default: ``data``.
        test_data: Data that analyses of the run evaluate on; default: ``data``.
        rotate_last: Rotate the last node layer (PCA, unscaled) or leave it as it is; default: by family.
        threshold: Absolute noise floor: directions whose variance, or whose Λ, is at most this are dropped.
        relative_threshold: Noise floor as a fraction of the largest value; default: width · 2.2e-16, and what
            rounding in the network's dtype amounts to in that direction; 0 is the paper's rule.
        statistics_samples: Samples, drawn at random, over which means, Grams and Jacobians are averaged;
            default: all.
        jacobian_sources: Stochastic sources over output positions where no closed form is known; default:
            exact.
        jacobian_queries: Query positions sampled per sequence in attention's Jacobians; default: all.
        jacobian_samples: Samples, drawn at random, over which attention's Jacobians are averaged; default:
            all.
        isolate: Keep a layer norm's variance as a feature of its own, out of the decompositions.
        skip_positions: Number of positions at the start of every sequence that are left out of all sums.
        norm_limit: Leave out tokens whose norm exceeds this many times the median of their layer; 0 leaves
            none out. Default: 3 for language models, else 0.
        isolate_largest: Keep the direction of largest variance of every layer as a feature of its own.
        edge_method: "gradient", "exact", "quadrature" or "trapezoid"; None builds no edges.
        edge_points: Points of the integration rule, for the methods that use one.
        edge_group: Tokens per group of stochastic sources for edges, or "positions"; default: exact.
        edge_sources: Sets of random signs per group.
        edge_positions: Output positions sampled per sequence, with an edge group; default: all.
        edge_samples: Samples, drawn at random, over which edges are averaged; several numbers are totals
            after each round. Once all were drawn, they are drawn again where signs or positions are sampled.
            Default: all, once.
        seed: Random seed.
        dtype: "float64" or "float32", in which the network computes; default: float32 for Hugging Face
            models, else float64. Sums and decompositions are always float64.
        model: A model by name, as the command line spells it, by which the run finds its model again.
        model_name: Name of the model on pages and in reports; default: the class of a traced module.
        class_names: Names of the outputs, in their order; kept in the run and shown in place of numbers.
        feature_names: Names of the inputs, such as the columns of a table; likewise.
        resume: The folder that the run will be saved in. Work is stored there while it lasts: a build that
            was killed resumes when it is called again, and ends with the same graph bit for bit.
        restart: Discard unfinished work that was begun with other settings instead of refusing it.
        memory: Memory that the process may hold, in bytes or such as "8GB"; default: no limit.
        device: Where the network computes: cpu, cuda, cuda:1, mps; default: where its weights are.
        cache_gigabytes: Disk space for activations between blocks during the build; 0 for none.
        progress: Show progress: True, False, a function, or None: bars on a terminal, else lines.
        team: The processes that share the work; all of them call `build`, and all receive the run.

    Returns:
        The run in memory; ``run.save(folder)`` stores it.

    Raises:
        InterbasisError: A setting is out of range, or the data do not fit the network.
    """
    config = record_from(BuildConfig, locals())
    resources, target = record_from(Resources, locals()), record_from(BuildTarget, locals())
    if not isinstance(network, Network):
        raise InterbasisError(
            f"expected an interbasis Network, received {type(network).__name__}; make one with "
            "interbasis.from_torch(module)"
        )
    network = network.named(model_name, class_names, feature_names)
    folder = None if resume is None else Path(resume)
    execution = Execution(resources, folder, restart, progress, team, model, target=target)
    if dictionaries is None and not only_dictionaries:
        raise InterbasisError("only_dictionaries=False is of no use without dictionaries; leave it out")
    if dictionaries is not None:
        if error is not None or time is not None:
            raise InterbasisError(
                "a graph between dictionaries is not built to an error or a time; leave out error and time"
            )
        between = execute_between(
            network, Batches(data, "data"), dictionaries, config, execution,
            only_dictionaries=only_dictionaries,
        )  # fmt: skip
        given = {place: entry for place, entry in dictionaries.items() if isinstance(entry, Dictionary)}
        return DictionaryRun(  # type: ignore[return-value]
            graph=between, given_network=network, train_data=data, test_data=test_data,
            given_dictionaries=given, progress=progress, team=team, built_here=True,
        )  # fmt: skip
    graph = execute(network, BuildData.from_data(data, jacobian_data, edge_data), config, execution)
    return Run(
        graph=graph, given_network=network, train_data=data, test_data=test_data, progress=progress,
        team=team, built_here=True,
    )  # fmt: skip
