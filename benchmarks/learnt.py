"""Which measure tells a trained network from its scrambled, new and half-trained versions?

    python benchmarks/learnt.py digits OUT.jsonl 0,1,2,3,4          # the two-task MLP
    python benchmarks/learnt.py modadd OUT.jsonl 0,1,2,3,4          # modular addition, p = 43
    python benchmarks/learnt.py transformer OUT.jsonl 0,1,2,3,4     # the two-task transformer

A line per network and seed; what OUT holds already is not measured again.
"""

import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import interbasis
from interbasis.analysis.ablation.controls import reinitialised, shuffled
from interbasis.analysis.ablation.robust import Attack
from interbasis.analysis.modules.modules import find_modules
from interbasis.analysis.stages.modules import ModulesResult
from interbasis.base.records import Basis
from interbasis.graph.interaction_graph import InteractionGraph
from interbasis.network.network import Network
from interbasis_studies.known.modular_addition import (
    ModularAdditionSpec,
    score_modular_addition,
    train_modular_addition,
    with_frequencies,
)
from learnt_measures import edge_counts, halves, network_answers, shared
from two_task_transformer import TwoTaskTransformerRecipe, train_two_task_transformer
from two_tasks import TwoTaskRecipe, TwoTasks, score_two_tasks, train_two_tasks

TOLERANCE = 0.01
SMALL_ATTACK = Attack(steps=8, starts=2, samples=64)
"""Of the transformers."""
NULL_GRAPHS = 10


Fitted = tuple[Network, InteractionGraph, ModulesResult]


@dataclass(frozen=True, eq=False)
class Version:
    """One network: inputs to build on, inputs to measure on, and what it does for its tasks."""

    network: Network
    inputs: Tensor
    test_inputs: Tensor
    function: "object"


def tasks_version(known: TwoTasks) -> Version:
    return Version(known.by_task, known.inputs[:1500], known.test_inputs[:500], known)


def digits(seed: int) -> Iterator[tuple[str, Version]]:
    trained = train_two_tasks(TwoTaskRecipe(seed=seed))
    yield "trained", tasks_version(trained)
    yield "half-trained", tasks_version(train_two_tasks(TwoTaskRecipe(seed=seed, steps=60)))
    yield "at initialisation", tasks_version(train_two_tasks(TwoTaskRecipe(seed=seed, steps=0)))
    yield "shuffled", tasks_version(replace(trained, network=shuffled(trained.network, seed)))
    yield "re-initialised", tasks_version(replace(trained, network=reinitialised(trained.network, seed)))


def transformer(seed: int) -> Iterator[tuple[str, Version]]:
    trained = train_two_task_transformer(TwoTaskTransformerRecipe(seed=seed))
    yield "trained", tasks_version(trained)
    half = train_two_task_transformer(TwoTaskTransformerRecipe(seed=seed, steps=200))
    yield "half-trained", tasks_version(half)
    yield (
        "at initialisation",
        tasks_version(train_two_task_transformer(TwoTaskTransformerRecipe(seed=seed, steps=0))),
    )
    yield "shuffled", tasks_version(replace(trained, network=shuffled(trained.network, seed)))


def modadd(seed: int) -> Iterator[tuple[str, Version]]:
    trained = train_modular_addition(ModularAdditionSpec(), seed)

    def version(known: Any) -> Version:
        return Version(known.network, known.training.inputs, known.test.inputs, known)

    yield "trained", version(trained)
    yield "half-trained", version(train_modular_addition(ModularAdditionSpec(steps=60), seed))
    yield "at initialisation", version(train_modular_addition(ModularAdditionSpec(steps=0), seed))
    for name, change in (("shuffled", shuffled), ("re-initialised", reinitialised)):
        other = with_frequencies(change(trained.network, seed), trained.training, trained.test)
        yield name, version(replace(other, frequencies=trained.frequencies))


def function(kind: str, known: Any, graph: InteractionGraph) -> dict[str, float]:
    if kind == "modadd":
        scores = score_modular_addition(known, graph)
        return {"accuracy": known.accuracy, "features": scores.features, "matched": scores.matched,
                "frequency_modules": scores.modules}  # fmt: skip
    scores = score_two_tasks(known, graph)
    return {"accuracy": min(known.accuracies), "selectivity": scores.selectivity, "effects": scores.effects,
            "module_count": scores.modules}  # fmt: skip


def measure(kind: str, version: Version, fitted: Fitted, basis: Basis) -> dict[str, float]:
    network, graph, modules = fitted
    started = time.process_time()
    twice = halves(network, version.inputs, version.test_inputs, basis)
    attack = SMALL_ATTACK if kind != "digits" else Attack()
    counts = edge_counts(network, graph, network_answers(network, version.test_inputs), TOLERANCE, attack)
    return function(kind, version.function, graph) | {
        "plain": counts.plain, "robust": counts.robust, "modularity": modules.modularity,
        "modularity_z": modules.null.z, "halves_features": twice.features, "halves_modules": twice.modules,
        "seconds": time.process_time() - started,
    }  # fmt: skip


def fit(version: Version, basis: Basis) -> Fitted:
    graph = interbasis.build(
        version.network, version.inputs, basis=basis, rotate_last=False, progress=False
    ).graph
    return version.network, graph, find_modules(graph, seeds=0, null_graphs=NULL_GRAPHS, resolutions=())


def main(kind: str, out: Path, seeds: list[int], bases: Sequence[Basis]) -> None:
    """Measure networks of these seeds; each is compared with that of the seed before it in the list."""
    torch.set_num_threads(1)
    make = {"digits": digits, "modadd": modadd, "transformer": transformer}[kind]
    lines = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    done = {(row["kind"], row["seed"], row["version"], row["basis"]) for row in lines}
    before: dict[tuple[str, str], Fitted] = {}
    common: Tensor | None = None
    for seed in seeds:
        for name, version in make(seed):
            common = version.test_inputs if common is None else common
            for basis in bases:
                fitted = fit(version, basis)
                if (kind, seed, name, basis) not in done:
                    row = measure(kind, version, fitted, basis)
                    if (name, basis) in before:
                        pair: Any = tuple(zip(before[name, basis], fitted, strict=True))
                        across = shared(pair[0], pair[1], common, pair[2])
                        row |= {"seeds_features": across.features, "seeds_modules": across.modules}
                    record = {"kind": kind, "seed": seed, "version": name, "basis": basis, **row}
                    with out.open("a") as file:
                        file.write(json.dumps(record) + "\n")
                before[name, basis] = fitted


if __name__ == "__main__":
    chosen = [int(seed) for seed in sys.argv[3].split(",")]
    bases: Any = sys.argv[4].split(",") if sys.argv[4:] else ("lib", "pca")
    main(sys.argv[1], Path(sys.argv[2]), chosen, bases)
