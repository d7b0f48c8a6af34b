"""Every route, rendered as it would be launched and as a trial, and what is known of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dlbhpc.command import Request, plan_launch
from dlbhpc.layout import CONF
from dlbhpc.recipe import Recipe, list_recipes, read_recipe
from dlbhpc.upstream.check import Problem, check_overrides
from dlbhpc.upstream.composed import upstream_surface
from dlbhpc.upstream.surface import Surface

OK, FAILED, UNVERIFIED = "ok", "failed", "unverified"


@dataclass(frozen=True)
class Route:
    """A recipe on a dataset, with the overrides of its commands (locked first, then a trial's)."""

    recipe: Recipe
    commands: tuple[tuple[str, ...], ...]

    @property
    def name(self) -> str:
        return f"{self.recipe.name} on {self.recipe.dataset.name}"

    def is_excused(self, key: str) -> bool:
        """Whether an override belongs to a group that could not be verified yet."""
        unverified = self.recipe.unverified
        return unverified is not None and key.lstrip("+").split(".")[0] in unverified.groups


@dataclass(frozen=True)
class Verdict:
    """What a check found of one route: ``ok``, ``failed`` or ``unverified``, and why."""

    route: str
    status: str
    notes: tuple[str, ...] = ()


def routes(conf_dir: Path = CONF) -> Iterator[Route]:
    """Every recipe on each of its datasets."""
    for first in list_recipes(conf_dir):
        for dataset in first.datasets:
            recipe = read_recipe(first.name, dataset, conf_dir)
            trials: tuple[dict[str, int] | None, ...] = (
                (None, {}) if recipe.trial_defaults else (None,)
            )
            commands = tuple(
                plan_launch(Request(recipe.name, dataset, trial=trial), conf_dir, read_recipe).argv
                for trial in trials
            )
            yield Route(recipe, tuple(argv[3:] for argv in commands))


def surface_of(route: Route) -> Surface:
    """The surface of a route's upstream."""
    return upstream_surface(route.recipe.upstream)


def check_route(route: Route, surface: Surface) -> Verdict:
    """The verdict on a route's commands by its upstream's surface.

    What a recipe calls unverified is excused as long as the surface is only a neighbour's.
    """
    problems = [
        (problem, route.is_excused(problem.key) and not surface.pinned)
        for problem in dict.fromkeys(
            problem for words in route.commands for problem in check_overrides(words, surface)
        )
    ]
    notes = [_note(problem, surface) for problem, _ in problems]
    if any(not excused for _, excused in problems):
        return Verdict(route.name, FAILED, tuple(notes))
    if not surface.pinned:
        notes.insert(0, _neighbour(route, surface))
        return Verdict(route.name, UNVERIFIED, tuple(notes))
    return Verdict(route.name, OK)


def _neighbour(route: Route, surface: Surface) -> str:
    """Why a surface of another commit proves nothing about the pin."""
    return (
        f"the surface of {surface.upstream} was recorded at {surface.commit}, not at the pin "
        f"{route.recipe.upstream.commit}"
    )


def _note(problem: Problem, surface: Surface) -> str:
    at = f"{surface.upstream} at {surface.commit[:12]}" if surface.commit else surface.upstream
    return f"{problem.key}: {at} wants {problem.expected}"
