"""Networks whose structure is known, and scores for how much of it a basis finds."""

from interbasis.known.planted import PlantedSpec, plant
from interbasis.known.scores import Scores, score
from interbasis.known.truth import KnownNetwork, Truth

__all__ = ["KnownNetwork", "PlantedSpec", "Scores", "Truth", "plant", "score"]
