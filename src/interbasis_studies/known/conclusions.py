"""Plain sentences computed from a scoreboard."""

from collections.abc import Iterator

from interbasis_studies.known.records import BREAKDOWN, TITLES, Estimate, Scoreboard, ScoredBasis

GOOD = 0.95
NEAR = 0.1
"""A score within so much of the random rotation's is no better than chance."""
JUDGED = {"cosine": "cosine", "effects": "modules", "edge_precision": "edge_precision", "matched": "matched"}
"""An axis is judged by the second score of the first pair whose first score is defined."""
STRUCTURES = {
    "cosine": "features", "modules": "parts", "edge_precision": "interactions", "matched": "features",
}  # fmt: skip
"""Structure that a good score of this name stands for."""


def judged_by(board: Scoreboard, axis: str) -> str:
    """The score that an axis is judged by: modules, where the network has known modules."""
    value = board.axes[axis][-1]
    for defined, name in JUDGED.items():
        if any(board.estimate(axis, value, basis, defined) for basis in board.bases):
            return name
    return "matched"


def row_conclusion(board: Scoreboard, axis: str, value: str) -> str:
    """Sentences about the bases that find the parts at one value of an axis, and about LIB."""
    name = judged_by(board, axis)
    fitted: dict[ScoredBasis, Estimate] = {
        basis: estimate
        for basis in board.bases
        if basis != "ceiling" and (estimate := board.estimate(axis, value, basis, name))
    }
    if not fitted:
        return "There is nothing to be found here."
    good = [TITLES[basis] for basis, estimate in fitted.items() if estimate.mean >= GOOD]
    things = STRUCTURES[name]
    sentence = f"The {things} are found by {_listed(good)}." if good else f"No basis finds the {things}."
    return f"{sentence} {_about_lib(fitted)}".strip()


def _about_lib(scores: dict[ScoredBasis, Estimate]) -> str:
    lib, chance = scores.get("lib"), scores.get("random")
    if lib is None:
        return ""
    text = f"LIB scores {lib.mean:.2f} ({lib.low:.2f} to {lib.high:.2f})"
    if lib.mean >= GOOD:
        return f"{text}: trust it here."
    if chance is not None and lib.mean < chance.mean + NEAR:
        return f"{text}, no better than a random rotation: do not trust it here."
    if lib.mean < BREAKDOWN:
        return f"{text}, more than chance, but most of the structure is lost: do not trust it here."
    return f"{text}: in part."


def axis_conclusions(board: Scoreboard, axis: str) -> Iterator[str]:
    """Sentences on the value of an axis at which each basis breaks down."""
    values, name = board.axes[axis], judged_by(board, axis)
    never: list[str] = []
    at: dict[str, list[str]] = {}
    for basis in board.bases:
        value = board.breakdown(axis, basis, name)
        if value is None:
            never.append(TITLES[basis])
        else:
            crossing = board.crossing(axis, basis, name)
            about = "" if crossing is None else f" (about {crossing:.2g})"
            at.setdefault(value, []).append(TITLES[basis] + about)
    for value in values:
        if value in at:
            yield f"Below {BREAKDOWN:g} at {axis} {value} for the first time: {_listed(at[value])}."
    if never:
        yield f"Never below {BREAKDOWN:g} up to {axis} {values[-1]}: {_listed(never)}."


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
