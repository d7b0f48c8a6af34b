"""What to train: a frozen, typed recipe composed from dlbhpc/conf."""

from __future__ import annotations

from dlbhpc.recipe.load import (
    UnknownRecipe,
    list_datasets,
    list_recipes,
    load_recipe,
    read_recipe,
)
from dlbhpc.recipe.locked import LOCKED_FLAGS, LockedValue, check_locked
from dlbhpc.recipe.model import (
    SNAPSHOT_INIT,
    Dataset,
    Departure,
    Disclosure,
    Evidence,
    Limit,
    Recipe,
    Resume,
    Snapshot,
    StudentInit,
    Teacher,
    Trial,
    Unverified,
    Upstream,
    Value,
)
from dlbhpc.recipe.trial import parse_sizes, trial_of

__all__ = [
    "LOCKED_FLAGS",
    "SNAPSHOT_INIT",
    "Dataset",
    "Departure",
    "Disclosure",
    "Evidence",
    "Limit",
    "LockedValue",
    "Recipe",
    "Resume",
    "Snapshot",
    "StudentInit",
    "Teacher",
    "Trial",
    "UnknownRecipe",
    "Unverified",
    "Upstream",
    "Value",
    "check_locked",
    "list_datasets",
    "list_recipes",
    "load_recipe",
    "parse_sizes",
    "read_recipe",
    "trial_of",
]
