"""Networks whose structure is known, and scores for how much of it a basis finds."""

from typing import TYPE_CHECKING

from interbasis.base.lazy import lazy_names

if TYPE_CHECKING:
    from interbasis_studies.known.bases import fit as fit
    from interbasis_studies.known.modular_addition import ModularAddition as ModularAddition
    from interbasis_studies.known.modular_addition import ModularAdditionSpec as ModularAdditionSpec
    from interbasis_studies.known.modular_addition import score_modular_addition as score_modular_addition
    from interbasis_studies.known.modular_addition import train_modular_addition as train_modular_addition
    from interbasis_studies.known.planted import PlantedSpec as PlantedSpec
    from interbasis_studies.known.planted import plant as plant
    from interbasis_studies.known.programs import ProgramSpec as ProgramSpec
    from interbasis_studies.known.programs import plant_program as plant_program
    from interbasis_studies.known.programs import plant_transformer as plant_transformer
    from interbasis_studies.known.records import RecoveryScores as RecoveryScores
    from interbasis_studies.known.scores import score as score
    from interbasis_studies.known.superposition import SuperpositionSpec as SuperpositionSpec
    from interbasis_studies.known.superposition import plant_superposition as plant_superposition
    from interbasis_studies.known.truth import KnownNetwork as KnownNetwork
    from interbasis_studies.known.truth import Truth as Truth

_MODULES = {
    "bases": ("fit",),
    "modular_addition": (
        "ModularAddition", "ModularAdditionSpec", "score_modular_addition", "train_modular_addition",
    ),
    "planted": ("PlantedSpec", "plant"),
    "programs": ("ProgramSpec", "plant_program", "plant_transformer"),
    "records": ("RecoveryScores",),
    "scores": ("score",),
    "superposition": ("SuperpositionSpec", "plant_superposition"),
    "truth": ("KnownNetwork", "Truth"),
}  # fmt: skip
_HOMES = {name: module for module, names in _MODULES.items() for name in names}

__all__ = list(_HOMES)
__getattr__, __dir__ = lazy_names(__name__, _HOMES)
