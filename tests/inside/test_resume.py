"""A run that was stopped and resumed is the run that was not."""

from __future__ import annotations

import pytest

from dlbhpc.exit_status import REQUEUE
from tests.inside.conftest import PACKAGES


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
    "epochs": {"epochs": 2, "samples": 12},
    "tail of accumulation": {"accumulation": 5, "epochs": 2, "samples": 24},
    "workers": {"workers": 2, "persistent": True, "epochs": 2, "samples": 12},
    "validation": {"validate_every": 4, "sanity": 2},
    "steps instead of epochs": {"max_steps": 9, "epochs": 2, "samples": 12},
    "two ranks": {"devices": 2, "epochs": 2, "samples": 24, "accumulation": 2},
    "two ranks with validation": {"devices": 2, "validate_every": 3, "workers": 1},
}


# hazard: the options that reproduce what an upstream does
HAZARDS = {
    "5: a sampler installed as the training starts": {
        "loader": "installed",
        "epochs": 2,
        "samples": 12,
    },
    "5: the same on two ranks with workers and an uneven accumulation": {
        "loader": "installed",
        "devices": 2,
        "epochs": 2,
        "samples": 20,
        "accumulation": 2,
        "workers": 1,
        "persistent": True,
    },
    "5: no position at all": {"loader": "plain", "devices": 2, "epochs": 2, "samples": 24},
    "5: no position, persistent workers": {
        "loader": "plain",
        "epochs": 2,
        "samples": 12,
        "workers": 2,
        "persistent": True,
        "accumulation": 2,
    },
    "5: the stateful loader of sdtt": {
        "loader": "stateful",
        "epochs": 2,
        "samples": 12,
        "workers": 1,
        "persistent": True,
    },
    "6: the teacher and the step of time of sdtt": {"teacher": "sdtt", "samples": 16},
    "7: the teacher of duo's distillation": {"teacher": "duo", "samples": 16},
    "7: a teacher that the check before training made": {
        "teacher": "duo",
        "samples": 16,
        "sanity": 1,
    },
    "7: the same on two ranks": {"teacher": "duo", "samples": 28, "devices": 2},
}


@pytest.mark.parametrize("hazard", HAZARDS)
def test_hazard(toy, hazard):
    options = HAZARDS[hazard]
    if options.get("loader") == "stateful" and not (PACKAGES / "torchdata").is_dir():
        pytest.skip(f"torchdata is absent; 'make .cache/{PACKAGES.name}' installs it")
    whole = straight(toy, **options)
    total = whole.final()[0]["step"]
    run = interrupted(toy, [1, total // 2, total // 2 + 1, total - 1], **options)
    assert run.samples() == whole.samples()
    assert run.final() == whole.final()
    assert not any(event["event"] == "position_not_kept" for event in run.events())


@pytest.mark.parametrize("case", CASES)
def test_a_stopped_run_ends_like_the_uninterrupted_one(toy, case):
    options = CASES[case]
    whole = straight(toy, **options)
    total = whole.final()[0]["step"]
    half = total // 2  # with two epochs the last step of the first
    stops = sorted({1, half, half + 1, total - 1})
    run = interrupted(toy, stops, **options)
    assert run.samples() == whole.samples()
    assert run.final() == whole.final()


def test_a_killed_run_ends_like_the_uninterrupted_one(toy):
    options = {"devices": 2, "accumulation": 2}
    whole = straight(toy, **options)
    run = toy("killed", **options)
    order = {"at": "step", "step": 4, "send": "KILL"}
    assert run.attempt({"milestones": [2]}, signals=[order]) == [-9, -9], run.logs
    assert run.steps() == [2]
    assert run.attempt() == [0, 0], run.logs
    assert run.final() == whole.final()


def test_the_upstreams_own_checkpoints_resume_exactly_too(toy):
    options = {"accumulation": 3}
    whole = straight(toy, **options)
    run = toy("own", **options)
    assert run.attempt(own_checkpoint=4, signals=[{"at": "step", "step": 6, "send": "KILL"}]) == [
        -9
    ]
    assert run.steps() == []
    assert run.attempt({"resumed_from": 4}, resume=str(run.output / "own.ckpt")) == [0], run.logs
    assert run.final() == whole.final()
