"""Trials: a recipe at toy size, marked so that it is never taken for the locked run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from dlbhpc.errors import DlbhpcError
from dlbhpc.geometry import require_positive
from dlbhpc.recipe.model import Recipe, Trial


def parse_sizes(text: str) -> dict[str, int]:
    """The sizes of ``steps=20,batch=4``. Raises :class:`DlbhpcError`."""
    sizes: dict[str, int] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        key, _, value = part.partition("=")
        if not value.isascii() or not value.isdecimal():
            raise DlbhpcError(f"--trial {part!r}: write it as size=number, as in steps=20,batch=4")
        if key in sizes:
            raise DlbhpcError(f"--trial names {key!r} twice")
        sizes[key] = require_positive(f"--trial {key}", int(value))
    return sizes


def trial_of(recipe: Recipe, requested: Mapping[str, int]) -> Recipe:
    """The recipe as a trial of its default sizes, some of them replaced by ``requested``.

    Sizes ``steps``, ``batch``, ``warmup`` and ``milestone`` replace the recipe's numbers; others
    are only known to the trial's overrides. Raises :class:`DlbhpcError`.
    """
    defaults = recipe.trial_defaults
    if defaults is None:
        raise DlbhpcError(
            f"trials of {recipe.name} are not available yet: submit it without --trial"
        )
    if unknown := sorted(set(requested) - set(defaults.sizes)):
        raise DlbhpcError(
            f"--trial {unknown[0]!r} is no size of {recipe.name}'s trial: there are "
            f"{', '.join(defaults.sizes)}"
        )
    for key, value in requested.items():
        require_positive(f"--trial {key}", value)
    sizes = {**defaults.sizes, **requested}
    return replace(
        recipe,
        steps=sizes["steps"],
        global_batch=sizes["batch"],
        warmup_steps=sizes["warmup"],
        milestone_every=sizes["milestone"],
        rounds=None,
        steps_per_round=None,
        selected_step=None,
        overrides={**recipe.overrides, **defaults.overrides},
        trial=Trial(sizes, defaults.overrides),
    )
