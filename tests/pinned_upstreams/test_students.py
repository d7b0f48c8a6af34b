"""Students of real base trials: teachers through the adapter, training on the upstreams' code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.pinned_upstreams.conftest import at_neighbour, finish, interrupt_twice, log
from tests.project import Project, identical

ROUNDS = "steps=10,round=5,milestone=5"


@pytest.fixture(scope="module")
def mdlm(module_run: Callable[..., Project]) -> Project:
    """A finished base run, beside the checkouts of its students."""
    run = module_run("mdlm", "mdlm", "sdtt", "di4c")
    finish(run, sizes="steps=5")
    return run


@pytest.fixture(scope="module")
def duo(module_run: Callable[..., Project]) -> Project:
    run = module_run("duo", "duo", "di4c")
    finish(run, sizes="steps=5")
    return run


def test_hazard_6_sdtt_interrupted_within_a_round_ends_with_the_same_bits(
    mdlm: Project, tmp_path: Path
) -> None:
    """The commit at hand is a neighbour of the pinned one."""
    straight = at_neighbour(replace(mdlm, recipe="mdlm_sdtt"), "sdtt", tmp_path)
    finish(straight, sizes=ROUNDS)
    assert "Doubling `dt`! New effective number of steps: 512" in log(straight)
    run = replace(straight, name="interrupted_sdtt")
    interrupt_twice(run, 3, 7, sizes=ROUNDS)
    for name in ("step-00000010", "step-00000005"):
        assert identical(step_state(run, name), step_state(straight, name))


def step_state(run: Project, name: str) -> object:
    """What a step directory holds of the optimization, the kept teacher included."""
    content = run.load(run.output.steps / name / "training_state.pt")
    kept = {key: content[key] for key in ("state_dict", "optimizer_states", "ema", "global_step")}
    return {**kept, "teacher": content["dlbhpc"]["shared"]}


@pytest.mark.parametrize("base", ["mdlm", "duo"])
@pytest.mark.parametrize("init", ["teacher", "scratch"])
def test_di4c_starts_from_an_adapted_teacher_and_resumes(
    base: str, init: str, request: pytest.FixtureRequest
) -> None:
    run = replace(request.getfixturevalue(base), recipe=f"{base}_di4c", name=f"{base}_di4c_{init}")
    options = ("--student-init", init)
    run.start(*options, sizes="steps=6,milestone=2")
    run.freeze_at(attempt=1, step=3)
    assert run.dlbhpc("preempt", str(run.output.folder)).returncode == 0
    run.wait_for_end()
    report = run.report()
    assert [attempt["end"] for attempt in report["attempts"]] == ["preempted", "completed"]
    assert (run.output.folder / "student_checkpoints" / "6.ckpt").is_file()
    assert run.output.adapted_teacher.is_file()
