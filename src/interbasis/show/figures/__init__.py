"""Static figures: records, graphs or numbers in, a matplotlib Figure out, in one style for paper and screen.

Figures are made without pyplot, so nothing of a notebook's settings, backend or open figures is touched. A
figure shows itself in a notebook; `save` writes it as SVG, PDF or PNG.
"""

from interbasis.show.figures.auroc import auroc_bars
from interbasis.show.figures.bars import BarOptions, spread_bars
from interbasis.show.figures.curves import ablation_curves
from interbasis.show.figures.densities import share_densities
from interbasis.show.figures.edges_required import required
from interbasis.show.figures.eigenvalues import eigenvalue_spectra
from interbasis.show.figures.interactions import interaction_graph
from interbasis.show.figures.modularity import Modularity, modularity_bars
from interbasis.show.figures.monosemanticity import monosemanticity
from interbasis.show.figures.positions import position_profiles
from interbasis.show.figures.required_of import required_of
from interbasis.show.figures.saving import save
from interbasis.show.figures.selection import GraphOptions
from interbasis.show.figures.trials import Tried, tried_counts

__all__ = [
    "BarOptions",
    "GraphOptions",
    "Modularity",
    "Tried",
    "ablation_curves",
    "auroc_bars",
    "eigenvalue_spectra",
    "interaction_graph",
    "modularity_bars",
    "monosemanticity",
    "position_profiles",
    "required",
    "required_of",
    "save",
    "share_densities",
    "spread_bars",
    "tried_counts",
]
