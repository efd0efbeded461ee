"""The tasks by name."""

from typing import Any

from interbasis_studies.paper.plan import Plan
from interbasis_studies.paper.task import Task


def open_task(plan: Plan) -> Task[Any]:
    """The task of a plan; what it needs is imported with it."""
    if plan.task == "modadd":
        from interbasis_studies.paper.tasks.modadd import ModularAdditionTask

        return ModularAdditionTask(plan)
    if plan.task == "cifar10":
        from interbasis_studies.paper.tasks.cifar10 import Cifar10

        return Cifar10(plan)
    from interbasis_studies.paper.tasks.language import LanguageModel

    return LanguageModel(plan)
