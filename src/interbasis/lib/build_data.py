"""Data of a build."""

from dataclasses import dataclass

from interbasis.base.errors import InterbasisError
from interbasis.compute.executor import Executor
from interbasis.data.batches import Batches, Data
from interbasis.graph.settings import BuildConfig
from interbasis.lib.edges import require_fixed_order


@dataclass(frozen=True, eq=False)
class BuildData:
    """Inputs that the parts of a graph are averaged over."""

    data: Batches
    jacobian_data: Batches
    edge_data: Batches

    @classmethod
    def from_data(
        cls, data: Data, jacobian_data: Data | None = None, edge_data: Data | None = None
    ) -> "BuildData":
        """Make batches; those of Jacobians and edges are by default those of the data."""
        first = Batches(data, "data")
        second, third = (
            first if other is None or other is data else Batches(other, name)
            for name, other in (("jacobian_data", jacobian_data), ("edge_data", edge_data))
        )
        return cls(first, second, third)

    @property
    def by_name(self) -> dict[str, Batches]:
        return {"data": self.data, "jacobian_data": self.jacobian_data, "edge_data": self.edge_data}

    def check_order(self, config: BuildConfig) -> None:
        """Refuse shuffled data where random numbers belong to samples by their place."""
        if config.statistics_samples is not None:
            require_fixed_order(self.data)
            if config.statistics_samples >= len(self.data):
                raise InterbasisError(
                    f"statistics_samples must be below the number of samples, {len(self.data)}, received "
                    f"{config.statistics_samples}; leave it out for statistics of all of them"
                )
            if self.jacobian_data is not self.data:
                raise InterbasisError(
                    "statistics_samples requires Jacobians over the same data, received jacobian_data; leave "
                    "out one of them"
                )
        if (config.jacobian_sources, config.jacobian_queries, config.jacobian_samples) != (None, None, None):
            require_fixed_order(self.jacobian_data)
        if config.edge_sampling is not None or config.edge_samples is not None:
            require_fixed_order(self.edge_data)

    def fingerprints(self, executor: Executor) -> dict[str, str]:
        """Fingerprints of all data, which the first process alone reads as a whole."""
        return executor.team.once(
            "fingerprints",
            lambda: ({}, {name: batches.fingerprint() for name, batches in self.by_name.items()}),
        )[1]
