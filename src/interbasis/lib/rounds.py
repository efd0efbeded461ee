"""The rounds of a build: passes over the data, each of which needs what follows from those before it.

The statistics of all layers are one pass. Attention's Gram Σ NᵀQN has no sums of reasonable size that do not
depend on the metric Q of the layer after it (they would be [h, h, h, h] per pair of heads of width h), and Q
follows from the Gram of the layer after that. So every section whose core needs a pass of its own is a round,
from the last to the first. All edges are one round, once all bases are known.
"""

from interbasis.graph.settings import BuildConfig
from interbasis.lib.bases import BASES
from interbasis.lib.edges import round_name
from interbasis.lib.jacobians import TO_END, pass_name
from interbasis.lib.slices import SLICED
from interbasis.lib.statistics import group_names, statistics_name
from interbasis.network.cores import PassCore
from interbasis.network.network import Network

Round = tuple[str, ...]
"""Names of the passes over data that a round consists of."""


def rounds(network: Network, config: BuildConfig, separate_jacobian_data: bool = False) -> list[Round]:
    """The rounds of a build in their order."""
    basis = BASES[config.basis]
    first: Round = tuple(map(statistics_name, group_names(config) or ["data"]))
    if basis.needs_jacobians and separate_jacobian_data:
        first += (statistics_name("jacobian_data"),)
    result = [first]
    if basis.needs_jacobians:
        passes = [section.source.name for section in network.sections if isinstance(section.core, PassCore)]
        if basis.jacobians_to_end:
            last = network.sections[-1].source.name
            result += [(pass_name(name),) for name in passes if name == last]
            result += [(TO_END,)] if len(network.sections) > 1 else []
        else:
            result += [(pass_name(name),) for name in reversed(passes)]
        result += [(SLICED,)] if basis.needs_slices else []
    if config.edge_rule is None:
        return result
    return [*result, *((round_name(number),) for number in range(len(config.edge_samples or (0,))))]
