"""The pinned duo through its adapters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.pinned_upstreams.conftest import finish, interrupt_twice, log
from tests.project import Project, identical

ROUNDS = "steps=10,round=5,milestone=5"


@pytest.fixture(scope="module")
def base(module_run: Callable[..., Project]) -> Project:
    """A finished base run."""
    run = module_run("duo", "duo")
    finish(run, sizes="steps=12,milestone=3")
    return run


def test_it_loads_the_bridged_cache(base: Project) -> None:
    cache = base.root / "data" / "trials" / "training_cache" / "duo" / "lm1b"
    for name in ("lm1b_train_bs32_wrapped.dat", "lm1b_test_bs32_wrapped.dat"):
        assert f"Loading data from: {cache / name}" in log(base)


def test_preempted_and_killed_it_ends_with_the_same_bits(base: Project) -> None:
    run = replace(base, name="interrupted")
    interrupt_twice(run, 4, 9, sizes="steps=12,milestone=3")
    assert identical(run.state(), base.state())


def test_hazard_7_distillation_interrupted_within_a_round_ends_with_the_same_bits(
    base: Project,
) -> None:
    straight = replace(base, recipe="duo_dcd")
    finish(straight, sizes=ROUNDS)
    run = replace(straight, name="interrupted_dcd")
    interrupt_twice(run, 3, 7, sizes=ROUNDS)
    assert identical(run.state(), straight.state())
    # Hazard 11: the decay of the teacher's EMA, which its checkpoint names, is not taken over.
    assert (base.state()["ema"]["decay"], run.state()["ema"]["decay"]) == (0.9999, 0.999)
