"""Locked numbers: a flag that names one is accepted only with the locked value."""

from __future__ import annotations

from dlbhpc.errors import DlbhpcError
from dlbhpc.recipe.model import Recipe

LOCKED_FLAGS = {
    "global_batch": "--global-batch-size",
    "learning_rate": "--learning-rate",
    "rounds": "--rounds",
    "steps_per_round": "--steps-per-round",
    "teacher_family": "--teacher-family",
}
"""The locked keys that have a flag. The seed is not among them: it is part of a run's identity."""


class LockedValue(DlbhpcError):
    """A flag gives another value than the recipe's locked one."""


def check_locked(recipe: Recipe, key: str, given: object) -> None:
    """Refuse ``given`` unless it is the locked value of ``key`` (a key of LOCKED_FLAGS).

    Numbers compare by value, so that 3e-4 is 0.0003. Raises :class:`LockedValue`.
    """
    if key == "teacher_family":
        locked: object = recipe.teacher.family if recipe.teacher else None
    else:
        locked = getattr(recipe, key)
    if isinstance(given, bool) or given != locked:
        has = f"is locked at {locked}" if locked is not None else "has no value to set"
        raise LockedValue(
            f"{key} of {recipe.name} on {recipe.dataset.name} {has} ({recipe.evidence.source}): "
            f"{given} was given; leave {LOCKED_FLAGS[key]} out"
        )
