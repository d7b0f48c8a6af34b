"""Surfaces on disk: stable bytes, read strictly, and never taken back to a neighbour's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dlbhpc.errors import DlbhpcError
from dlbhpc.layout import SURFACES
from dlbhpc.recipe import list_recipes
from dlbhpc.upstream.surface import Surface, read_surface, write_surface

NEIGHBOURS = {
    "flm": "d89a02f9aad7417b911a033b610bad04e79ab36f",
    "sdtt": "9172b86500126d4ca93bd5e204395c5062fdc7fd",
}
"""Recorded beside the pin, which was not at hand."""


def test_what_is_written_is_read_again_and_has_the_same_bytes(
    surface: Surface, tmp_path: Path
) -> None:
    path = write_surface(surface, tmp_path)
    first = path.read_bytes()
    assert read_surface("toy", tmp_path) == surface
    write_surface(read_surface("toy", tmp_path), tmp_path)
    assert path.read_bytes() == first


def test_every_pinned_upstream_has_its_surface_and_says_where_it_was_recorded() -> None:
    upstreams = {recipe.upstream.name: recipe.upstream for recipe in list_recipes()}
    pinned = {name for name, upstream in upstreams.items() if upstream.commit}
    assert {path.stem for path in SURFACES.iterdir()} == pinned
    for name in pinned:
        surface = read_surface(name, SURFACES)
        assert surface.commit == NEIGHBOURS.get(name, upstreams[name].commit)
        assert surface.pinned == (name not in NEIGHBOURS)
        assert surface.config == upstreams[name].config
        assert (SURFACES / f"{name}.json").read_text() == surface.text()


def test_a_neighbour_never_replaces_the_pin(surface: Surface, tmp_path: Path) -> None:
    neighbour = replace(surface, commit="2" * 40, pinned=False)
    write_surface(neighbour, tmp_path)
    write_surface(surface, tmp_path)
    with pytest.raises(DlbhpcError, match="check out the pin"):
        write_surface(neighbour, tmp_path)
    assert read_surface("toy", tmp_path) == surface


def test_a_missing_surface_names_the_command(tmp_path: Path) -> None:
    with pytest.raises(DlbhpcError, match="upstream surface CHECKOUT --name toy"):
        read_surface("toy", tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"toy"', '"other"', "is that of other"),
        ('"schema_version": 1', '"schema_version": 9', "schema version 9"),
        ('"pinned"', '"pined"', "missing key 'pinned'"),
        ("{", "", "cannot be read"),
    ],
)
def test_a_damaged_surface_is_refused(
    surface: Surface, tmp_path: Path, old: str, new: str, message: str
) -> None:
    path = write_surface(surface, tmp_path)
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(DlbhpcError, match=message):
        read_surface("toy", tmp_path)
