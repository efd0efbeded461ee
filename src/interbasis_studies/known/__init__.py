"""Networks whose structure is known, and scores for how much of it a basis finds."""

from typing import TYPE_CHECKING

from interbasis.base.lazy import lazy_names

if TYPE_CHECKING:
    from interbasis_studies.known.bases import fit
    from interbasis_studies.known.modular_addition import (
        ModularAddition,
        ModularAdditionSpec,
        score_modular_addition,
        train_modular_addition,
    )
    from interbasis_studies.known.planted import PlantedSpec, plant
    from interbasis_studies.known.programs import ProgramSpec, plant_program
    from interbasis_studies.known.records import RecoveryScores
    from interbasis_studies.known.scores import score
    from interbasis_studies.known.superposition import SuperpositionSpec, plant_superposition
    from interbasis_studies.known.transformers import plant_transformer
    from interbasis_studies.known.truth import KnownNetwork, Truth
    from interbasis_studies.known.two_task_transformer import (
        TwoTaskTransformerRecipe,
        train_two_task_transformer,
    )
    from interbasis_studies.known.two_tasks import (
        TwoTaskRecipe,
        TwoTasks,
        TwoTaskScores,
        score_two_tasks,
        train_two_tasks,
    )

_MODULES = {
    "bases": ("fit",),
    "modular_addition": (
        "ModularAddition", "ModularAdditionSpec", "score_modular_addition", "train_modular_addition",
    ),
    "planted": ("PlantedSpec", "plant"),
    "programs": ("ProgramSpec", "plant_program"),
    "records": ("RecoveryScores",),
    "scores": ("score",),
    "superposition": ("SuperpositionSpec", "plant_superposition"),
    "transformers": ("plant_transformer",),
    "truth": ("KnownNetwork", "Truth"),
    "two_task_transformer": ("TwoTaskTransformerRecipe", "train_two_task_transformer"),
    "two_tasks": ("TwoTaskRecipe", "TwoTaskScores", "TwoTasks", "score_two_tasks", "train_two_tasks"),
}  # fmt: skip
_HOMES = {name: module for module, names in _MODULES.items() for name in names}

__all__ = list(_HOMES)
__getattr__, __dir__ = lazy_names(__name__, _HOMES)
