"""Plain sentences computed from a scoreboard."""

from collections.abc import Iterator

from interbasis.known.records import BREAKDOWN, TITLES, Estimate, Scoreboard, ScoredBasis

GOOD = 0.95
NEAR = 0.1
"""A score within so much of the random rotation's is no better than chance."""


def row_conclusion(board: Scoreboard, axis: str, value: str) -> str:
    """Which bases find the parts at one value of a knob, and whether LIB is one of them."""
    estimates = {basis: board.estimate(axis, value, basis, "modules") for basis in board.bases}
    scores = {basis: estimate for basis, estimate in estimates.items() if estimate is not None}
    fitted: dict[ScoredBasis, Estimate] = {
        basis: estimate for basis, estimate in scores.items() if basis != "ceiling"
    }
    good = [TITLES[basis] for basis, estimate in fitted.items() if estimate.mean >= GOOD]
    sentence = f"The parts are found by {_listed(good)}." if good else "No basis finds the parts."
    return f"{sentence} {_about_lib(fitted)}".strip()


def _about_lib(scores: dict[ScoredBasis, Estimate]) -> str:
    lib, chance = scores.get("lib"), scores.get("random")
    if lib is None:
        return ""
    said = f"LIB scores {lib.mean:.2f} ({lib.low:.2f} to {lib.high:.2f})"
    if lib.mean >= GOOD:
        return f"{said}: trust it here."
    if chance is not None and lib.mean < chance.mean + NEAR:
        return f"{said}, no better than a random rotation: do not trust it here."
    if lib.mean < BREAKDOWN:
        return f"{said}, more than chance, but most of the structure is lost: do not trust it here."
    return f"{said}: in part."


def axis_conclusions(board: Scoreboard, axis: str) -> Iterator[str]:
    """Where each basis breaks down along a knob."""
    values = board.axes[axis]
    never: list[str] = []
    at: dict[str, list[str]] = {}
    for basis in board.bases:
        value = board.breakdown(axis, basis)
        if value is None:
            never.append(TITLES[basis])
        else:
            at.setdefault(value, []).append(TITLES[basis])
    for value in values:
        if value in at:
            yield f"Below {BREAKDOWN:g} at {axis} {value} for the first time: {_listed(at[value])}."
    if never:
        yield f"Never below {BREAKDOWN:g} up to {axis} {values[-1]}: {_listed(never)}."


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
