"""Networks whose structure is known, and scores for how much of it a basis finds."""

from typing import TYPE_CHECKING

from interbasis.runtime.lazy import lazy_names

if TYPE_CHECKING:
    from interbasis.known.bases import fit
    from interbasis.known.planted import PlantedSpec, plant
    from interbasis.known.records import Scores
    from interbasis.known.scores import score
    from interbasis.known.transformers import plant_transformer
    from interbasis.known.truth import KnownNetwork, Truth
    from interbasis.known.two_tasks import (
        TwoTaskRecipe,
        TwoTasks,
        TwoTaskScores,
        score_two_tasks,
        train_two_tasks,
    )

_HOMES = {
    "plant": "planted",
    "PlantedSpec": "planted",
    "plant_transformer": "transformers",
    "KnownNetwork": "truth",
    "Truth": "truth",
    "fit": "bases",
    "score": "scores",
    "Scores": "records",
    "train_two_tasks": "two_tasks",
    "score_two_tasks": "two_tasks",
    "TwoTaskRecipe": "two_tasks",
    "TwoTasks": "two_tasks",
    "TwoTaskScores": "two_tasks",
}

__all__ = list(_HOMES)
__getattr__, __dir__ = lazy_names(__name__, _HOMES)
