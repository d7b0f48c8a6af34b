"""candi and flm, which share mdlm's trainer: interrupted, they end as if they had not been."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tests.pinned_upstreams.conftest import at_neighbour, finish, interrupt_twice
from tests.project import Project, identical

SIZES = "steps=12,milestone=3"


def test_candi_preempted_and_killed_ends_with_the_same_bits(
    new_run: Callable[..., Project],
) -> None:
    straight = new_run("candi", "candi")
    finish(straight, sizes=SIZES)
    run = replace(straight, name="interrupted")
    interrupt_twice(run, 4, 9, sizes=SIZES)
    assert identical(run.state(), straight.state())


def test_flm_preempted_and_killed_ends_with_the_same_bits(
    new_run: Callable[..., Project], tmp_path: Path
) -> None:
    """The commit at hand is a neighbour of the pinned one."""
    straight = at_neighbour(new_run("flm", "flm"), "flm", tmp_path / "pinned")
    finish(straight, sizes=SIZES)
    run = replace(straight, name="interrupted")
    interrupt_twice(run, 4, 9, sizes=SIZES)
    assert identical(run.state(), straight.state())
