"""With the upstreams' own checkouts: the surfaces are current, and every route composes."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

import pytest

from dlbhpc.inputs.source import head_commit
from dlbhpc.layout import SURFACES
from dlbhpc.recipe import list_recipes
from dlbhpc.upstream.compose import checkouts, compose_routes
from dlbhpc.upstream.record import record_checkout
from dlbhpc.upstream.routes import FAILED, OK, Route, routes, surface_of
from dlbhpc.upstream.surface import read_surface

pytestmark = pytest.mark.upstream

UPSTREAMS = {
    recipe.upstream.name: recipe.upstream for recipe in list_recipes() if recipe.upstream.commit
}
ROUTES = {
    name: list(same)
    for name, same in groupby(
        sorted(routes(), key=lambda route: route.recipe.upstream.name),
        key=lambda route: route.recipe.upstream.name,
    )
}


def checkout(name: str) -> Path:
    folder = checkouts() / name
    if not (folder / ".git").exists():
        pytest.skip(f"there is no checkout of {name} in {checkouts()}")
    return folder


@pytest.mark.parametrize("name", UPSTREAMS)
def test_the_recorded_surface_is_that_of_the_checkout(name: str) -> None:
    surface = read_surface(name, SURFACES)
    folder = checkout(name)
    if head_commit(folder) != surface.commit:
        pytest.skip(f"{folder} is not at {surface.commit}, where the surface was recorded")
    assert record_checkout(folder, UPSTREAMS[name]).text() == surface.text()


@pytest.mark.parametrize("name", UPSTREAMS)
def test_every_route_composes_with_its_trial(name: str) -> None:
    folder = checkout(name)
    at_pin = head_commit(folder) == UPSTREAMS[name].commit
    mine: list[Route] = ROUTES[name]
    for verdict in compose_routes(mine, surface_of(mine[0]), folder.parent):
        assert verdict.status == OK if at_pin else verdict.status != FAILED, verdict
