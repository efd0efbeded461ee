"""The models that a reproduction is about: given, or trained here."""

from pathlib import Path

from interbasis.paper.plan import SEEDS, Plan
from interbasis.runtime.errors import InterbasisError
from interbasis.runtime.progress import Progress, silent


def find_seeds(plan: Plan) -> tuple[int, ...]:
    """The seeds to do: those asked for, or all that there are weights for."""
    if plan.checkpoints is None:
        return SEEDS if plan.seeds is None else plan.seeds
    if not plan.checkpoints.is_dir():
        raise InterbasisError(f"expected a folder of checkpoints at {plan.checkpoints}, which is none")
    found = tuple(seed for seed in plan.seeds or SEEDS if _given(plan, seed) is not None)
    missing = [seed for seed in plan.seeds or () if seed not in found]
    if missing or not found:
        seed = missing[0] if missing else 0
        raise InterbasisError(
            f"{plan.checkpoints} has no checkpoint of seed {seed}; expected "
            f"{plan.task}-seed{seed}.safetensors "
            f"or seed{seed}.safetensors"
        )
    return found


def checkpoint(plan: Plan, seed: int, progress: Progress = silent) -> Path:
    """The checkpoint of a seed; trained, or trained on, where it is not there yet."""
    if plan.checkpoints is not None:
        path = _given(plan, seed)
        if path is None:
            raise InterbasisError(f"{plan.checkpoints} has no checkpoint of seed {seed}")
        return path.absolute()
    if plan.quick and plan.task == "modadd" and seed == 0:
        from interbasis.run.specs import SHIPPED

        return SHIPPED
    path = plan.out / "checkpoints" / f"{plan.task}-seed{seed}.safetensors"
    if not path.is_file():
        _train(plan, seed, path, progress)
    return path.absolute()


def _given(plan: Plan, seed: int) -> Path | None:
    assert plan.checkpoints is not None
    names = (f"{plan.task}-seed{seed}.safetensors", f"seed{seed}.safetensors")
    return next((plan.checkpoints / name for name in names if (plan.checkpoints / name).is_file()), None)


def _train(plan: Plan, seed: int, path: Path, progress: Progress) -> None:
    phase = f"training, seed {seed}"
    if plan.task == "modadd":
        from interbasis.training import modadd

        addition = modadd.Recipe(seed=seed)
        modadd.train(addition, path, lambda step, loss, accuracy: progress(phase, step, addition.steps))
        return
    from interbasis.run.specs import open_data
    from interbasis.training import cifar10

    spec = plan.data_spec or ""
    data = open_data(spec, "train"), open_data(spec, "test")
    cifar10.train(
        cifar10.Recipe(seed=seed),
        data,
        path,
        lambda step, steps, loss, accuracy: progress(phase, step, steps),
    )
