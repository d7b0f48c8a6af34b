"""Composition with an upstream's own configuration, in a process of its own."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from dlbhpc.cli.main import main
from dlbhpc.recipe import Upstream, read_recipe
from dlbhpc.upstream.compose import UPSTREAMS_VARIABLE, checkouts, compose_routes
from dlbhpc.upstream.routes import FAILED, OK, UNVERIFIED, Route, routes, surface_of
from dlbhpc.upstream.surface import Surface


@pytest.fixture
def folder(tmp_path: Path, configs: Path) -> Path:
    """A folder of checkouts, with one of the toy upstream."""
    (configs / "other.yaml").unlink()
    checkout = tmp_path / "upstreams/toy"
    checkout.mkdir(parents=True)
    configs.rename(checkout / "configs")
    git(checkout, "init", "-q")
    git(checkout, "add", ".")
    git(checkout, "commit", "-qm", "x")
    return checkout.parent


def git(folder: Path, *arguments: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    done = subprocess.run(
        ["git", *who, *arguments], cwd=folder, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def route(upstream: Upstream, *commands: tuple[str, ...]) -> Route:
    return Route(replace(read_recipe("mdlm"), upstream=upstream), commands)


def test_what_composes_at_the_pin_is_ok_and_what_does_not_is_named(
    folder: Path, upstream: Upstream, surface: Surface
) -> None:
    pinned = replace(upstream, commit=git(folder / "toy", "rev-parse", "HEAD"))
    fits = route(pinned, ("mode=eval", "algo=full"), ("+new=1", "hydra.run.dir=/tmp/x"))
    wrong = route(pinned, ("mode=eval",), ("algo=ful",))
    unresolved = route(pinned, ("mode=${gone.key}",))
    found = compose_routes([fits, wrong, unresolved], surface, folder)
    assert [verdict.status for verdict in found] == [OK, FAILED, FAILED]
    assert "Could not find 'algo/ful'" in found[1].notes[0]
    assert "gone.key" in found[2].notes[0]


def test_another_commit_or_a_changed_tree_proves_nothing_of_the_pin(
    folder: Path, upstream: Upstream, surface: Surface
) -> None:
    (elsewhere,) = compose_routes([route(upstream, ("mode=a",))], surface, folder)
    assert elsewhere.status == UNVERIFIED
    assert "is pinned to" in elsewhere.notes[0]
    pinned = replace(upstream, commit=git(folder / "toy", "rev-parse", "HEAD"))
    (folder / "toy/configs/algo/base.yaml").write_text("name: base\nadded: 1\n")
    (changed,) = compose_routes([route(pinned, ("algo.added=1",))], surface, folder)
    assert changed.status == UNVERIFIED
    assert "is not clean" in changed.notes[0]


def test_an_error_fails_at_a_neighbouring_commit_as_well_unless_the_recipe_is_unverified(
    folder: Path, upstream: Upstream, surface: Surface
) -> None:
    wrong = route(upstream, ("algo=ful",))
    excused = replace(
        wrong, recipe=replace(wrong.recipe, unverified=read_recipe("fmlm").unverified)
    )
    found = compose_routes([wrong, excused], surface, folder)
    assert [verdict.status for verdict in found] == [FAILED, UNVERIFIED]


def test_without_a_checkout_a_route_is_unverified_and_says_how_to_get_one(
    tmp_path: Path, upstream: Upstream, surface: Surface
) -> None:
    (verdict,) = compose_routes([route(upstream, ("mode=a",))], surface, tmp_path)
    assert verdict.status == UNVERIFIED
    assert "git clone https://github.com/owner/toy" in verdict.notes[0]


def test_the_bundled_upstream_needs_no_checkout(tmp_path: Path) -> None:
    (reference,) = (r for r in routes() if r.recipe.upstream.commit is None)
    (verdict,) = compose_routes([reference], surface_of(reference), tmp_path)
    assert verdict.status == OK


def test_a_variable_names_another_folder_of_checkouts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(UPSTREAMS_VARIABLE, str(tmp_path))
    assert checkouts() == tmp_path.resolve()
    assert main(["recipes", "check", "--compose"]) == 0
    shown = capsys.readouterr().out
    assert "by composition: 1 ok, 19 unverified" in shown
    assert f"the source checkout {tmp_path.resolve() / 'mdlm'} is missing" in shown
