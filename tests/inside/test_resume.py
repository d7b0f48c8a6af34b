"""A run that was stopped and resumed is the run that was not."""

from __future__ import annotations

import pytest

from dlbhpc.exit_status import REQUEUE


def interrupted(toy, stops, send="TERM", **options):
    """Statuses and run of one that was told to stop during each of these steps."""
    run = toy("interrupted", **options)
    for step in stops:
        order = {"at": "step", "step": step, "ranks": [0], "send": send}
        statuses = run.attempt(signals=[order])
        assert statuses == [REQUEUE] * run.world, run.logs
        assert run.steps()[-1] == step
    assert run.attempt() == [0] * run.world, run.logs
    return run


def straight(toy, **options):
    run = toy("straight", **options)
    assert run.attempt() == [0] * run.world, run.logs
    return run


CASES = {
    "plain": {},
    "accumulation": {"accumulation": 3},
    "epochs": {"epochs": 2, "samples": 24},
    "tail of accumulation": {"accumulation": 5, "epochs": 2, "samples": 24},
    "workers": {"workers": 2, "persistent": True, "epochs": 2, "samples": 24},
    "validation": {"validate_every": 4, "sanity": 2},
    "max_steps": {"max_steps": 18, "epochs": -1, "samples": 24},
}


@pytest.mark.parametrize("case", CASES)
def test_stopped_run_ends_like_the_uninterrupted_one(toy, case):
    options = CASES[case]
    if case == "max_steps":
        options = {**options, "epochs": 3}
    whole = straight(toy, **options)
    total = whole.final()[0]["step"]
    stops = sorted({1, 2, total // 2, total // 2 + 1, total - 1} - {0})
    run = interrupted(toy, stops, **options)
    assert run.samples() == whole.samples()
    assert run.final() == whole.final()
