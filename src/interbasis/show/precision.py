"""Errors of a run as a sentence."""

from interbasis.graph.precision import Precision


def precision_sentence(precision: Precision, unfinished: bool) -> str:
    """Errors reached and asked for, and whether the build goes on."""
    Λ, Ê = (max(errors.values(), default=0.0) for errors in (precision.layers, precision.sections))
    text = f"Largest errors of all layers and sections: {Λ:.1%} of Λ, {Ê:.1%} of Ê."
    if precision.error is not None:
        text += f" Asked for: {precision.error:.2%}."
    elif precision.time is not None:
        text += f" Asked for: the least within {duration(precision.time)}."
    return text + " The build has not ended: this graph is that of its last round." * unfinished


def duration(seconds: float) -> str:
    """A time in the largest unit that it has at least two of."""
    units = {"years": 365.25 * 86400, "days": 86400, "hours": 3600, "minutes": 60}
    texts = [f"{seconds / size:,.1f} {unit}" for unit, size in units.items() if seconds >= 2 * size]
    return texts[0] if texts else f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
