"""Static figures: records, graphs or numbers in, a matplotlib Figure out, in one style for paper and screen.

Figures are made without pyplot, so nothing of a notebook's settings, backend or open figures is touched. A
figure shows itself in a notebook; `save` writes it as SVG, PDF or PNG.
"""

from interbasis.show.figures.bars import auroc_bars
from interbasis.show.figures.curves import ablation_curves
from interbasis.show.figures.eigenvalues import eigenvalue_spectra
from interbasis.show.figures.interactions import interaction_graph
from interbasis.show.figures.positions import position_profiles
from interbasis.show.figures.required import required, required_shares
from interbasis.show.figures.saving import save
from interbasis.show.figures.shares import monosemanticity
from interbasis.show.figures.traces import trace_graph

__all__ = [
    "ablation_curves",
    "auroc_bars",
    "eigenvalue_spectra",
    "interaction_graph",
    "monosemanticity",
    "position_profiles",
    "required",
    "required_shares",
    "save",
    "trace_graph",
]
