"""The pinned mdlm, its main.py: interrupted however, it ends as if it had not been."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.pinned_upstreams.conftest import ONE_THREAD, finish, log, tail
from tests.project import Project, identical

SIZES = "steps=16,batch=500,milestone=4,blocks=1"
SMALL = ("--per-device-batch-size", "125")
"""An epoch of 51 micro-batches, 4 to a step and 3 to its last: the run ends in the second one."""


@pytest.fixture(scope="module")
def uninterrupted(module_run: Callable[..., Project]) -> Any:
    run = module_run("mdlm", "mdlm")
    finish(run, *SMALL, sizes=SIZES)
    return run.state()


def test_it_loads_the_bridged_cache(new_run: Callable[..., Project]) -> None:
    run = new_run("mdlm", "mdlm")
    finish(run, sizes="steps=3")
    cache = run.root / "data" / "trials" / "training_cache" / "mdlm" / "lm1b"
    for name in ("lm1b_train_bs32_wrapped.dat", "lm1b_test_bs32_wrapped.dat"):
        assert f"Loading data from: {cache / name}" in log(run)
    assert "Generating new data" not in log(run)


@pytest.mark.parametrize("step", [13, 14], ids=["end of epoch", "second epoch"])
def test_preempted_it_resumes_at_the_step_and_ends_with_the_same_bits(
    new_run: Callable[..., Project], uninterrupted: Any, step: int
) -> None:
    run = new_run("mdlm", "mdlm")
    run.start(*SMALL, sizes=SIZES)
    run.freeze_at(attempt=1, step=step)
    assert run.dlbhpc("preempt", str(run.output.folder)).returncode == 0
    run.wait_for_end()
    report = run.report()
    assert [attempt["end"] for attempt in report["attempts"]] == ["preempted", "completed"], tail(
        run
    )
    assert report["attempts"][1]["from_step"] == report["attempts"][0]["to_step"] >= step
    assert report["steps_repeated"] == 0
    assert identical(run.state(), uninterrupted)


def test_killed_it_goes_on_from_the_newest_step_and_ends_with_the_same_bits(
    new_run: Callable[..., Project], uninterrupted: Any
) -> None:
    run = new_run("mdlm", "mdlm")
    run.start(*SMALL, sizes=SIZES)
    run.freeze_at(attempt=1, step=8)
    run.kill_everything()
    finish(run, *SMALL, sizes=SIZES)
    first, second = run.report()["attempts"]
    assert (first["end"], second["end"]) == ("interrupted", "completed")
    assert second["from_step"] == first["to_step"] == 8
    assert identical(run.state(), uninterrupted)


def test_two_ranks_preempted_end_with_the_same_bits(new_run: Callable[..., Project]) -> None:
    two = replace(new_run("mdlm", "mdlm"), environment={"SHIM_CUDA_DEVICES": "2", **ONE_THREAD})
    flags, sizes = ("--gpus-per-node", "2"), "steps=8,milestone=3"
    finish(two, *flags, sizes=sizes)
    run = replace(two, name="interrupted")
    run.start(*flags, sizes=sizes)
    run.freeze_at(attempt=1, step=4)
    assert run.dlbhpc("preempt", str(run.output.folder)).returncode == 0
    run.wait_for_end()
    ends = [attempt["end"] for attempt in run.report()["attempts"]]
    assert ends == ["preempted", "completed"], tail(run)
    assert identical(run.state(), two.state())
