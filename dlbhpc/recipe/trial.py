"""Trials: a recipe at toy size, marked so that it is never taken for the locked run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dlbhpc.errors import DlbhpcError
from dlbhpc.geometry import require_positive
from dlbhpc.recipe.model import SNAPSHOT_INIT, Recipe, StudentInit


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


def trial_of(recipe: Recipe, requested: Mapping[str, int], accelerator: str = "cuda") -> Recipe:
    """The recipe as a trial of its default sizes, some of them replaced by ``requested``.

    Sizes ``steps``, ``batch``, ``warmup``, ``milestone`` and ``round`` (the steps of a round)
    replace the recipe's numbers; others are only known to the trial's overrides, which may also
    stand in for a departure. One GPU is enough; without any (``accelerator`` is ``cpu``) it trains
    in 32 bits. Raises :class:`DlbhpcError`.
    """
    defaults = recipe.trial_defaults
    if defaults is None:
        raise DlbhpcError(f"{recipe.name} has no trial: submit it without --trial")
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
        dataset=defaults.dataset or recipe.dataset,
        steps=sizes["steps"],
        global_batch=sizes["batch"],
        warmup_steps=sizes["warmup"],
        precision="32-true" if accelerator == "cpu" else recipe.precision,
        milestone_every=sizes["milestone"],
        **_rounds(recipe, sizes),
        gpus_per_node=1,
        num_workers=min(recipe.num_workers, 1),
        student_init=_without_snapshot(recipe.student_init),
        overrides={**recipe.overrides, **defaults.overrides},
        departures=tuple(d for d in recipe.departures if d.key not in defaults.overrides),
        trial=replace(defaults, sizes=sizes, accelerator=accelerator),
    )


def _rounds(recipe: Recipe, sizes: Mapping[str, int]) -> dict[str, Any]:
    """The fields that follow from the length of a round."""
    if recipe.rounds is None:
        return {"selected_step": None}
    steps, per_round = sizes["steps"], sizes["round"]
    if steps % per_round:
        raise DlbhpcError(f"--trial: {steps} steps are no whole number of rounds of {per_round}")
    if recipe.selected_step is not None and steps == per_round:
        raise DlbhpcError("--trial: the result is that of the last round but one: ask for two")
    return {
        "rounds": steps // per_round,
        "steps_per_round": per_round,
        "selected_step": None if recipe.selected_step is None else steps - per_round,
    }


def _without_snapshot(init: StudentInit | None) -> StudentInit | None:
    """What a small student may start from: published weights have the real size."""
    if init is None:
        return None
    allowed = tuple(name for name in init.allowed if name != SNAPSHOT_INIT)
    return replace(init, allowed=allowed, default=allowed[0])
