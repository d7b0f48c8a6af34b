"""Every Lightning upstream's own code: however it is interrupted, it ends with the same bits.

Each case on lm1b is run twice: straight through, and with a preemption of its first attempt and a
SIGKILL to everything of its second; each on owt straight through only. Students take the completed
straight run of their base for a teacher.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from dlbhpc.recipe import read_recipe
from tests.pinned_upstreams.conftest import (
    finish,
    frozen_after,
    last_state,
    log,
    require_checkout,
    tail,
    wait_until_frozen,
)
from tests.project import Project, identical


@dataclass(frozen=True)
class Case:
    """``updates``: those that the preempted attempt makes, and those of the killed one."""

    recipe: str
    sizes: str
    updates: tuple[int, int] = (0, 0)
    flags: tuple[str, ...] = ()
    ranks: int = 1
    teacher: str | None = None
    dataset: str = "lm1b"
    old_lightning: bool = False
    pinned: bool = True

    @property
    def upstream(self) -> str:
        return read_recipe(self.recipe, self.dataset).upstream.name


# An epoch of mdlm has 51 micro-batches of 125, 4 to a step and 3 to its last: its first attempt
# ends with the epoch, its second is killed in the next one. Those that distil in rounds are
# interrupted within the second, whose teacher is the student of the first.
IN_EPOCHS = "steps=16,batch=500,milestone=2,blocks=1"
PLAIN = "steps=9,milestone=3,blocks=1"
IN_ROUNDS = "steps=10,round=5,milestone=5,blocks=1"
DI4C = "steps=6,milestone=2,blocks=1"
CASES = {
    "mdlm": Case("mdlm", IN_EPOCHS, (13, 2), ("--per-device-batch-size", "125")),
    "duo": Case("duo", PLAIN, (4, 3)),
    "candi": Case("candi", PLAIN, (4, 3)),
    "flm": Case("flm", PLAIN, (4, 3), pinned=False),
    "duo_dcd": Case("duo_dcd", IN_ROUNDS, (7, 2), teacher="duo"),
    "mdlm_sdtt": Case("mdlm_sdtt", IN_ROUNDS, (7, 2), teacher="mdlm", pinned=False),
    "mdlm_di4c": Case("mdlm_di4c", DI4C, (3, 2), teacher="mdlm"),
    "duo_di4c": Case("duo_di4c", DI4C, (3, 2), teacher="duo"),
    "mdlm-two-ranks": Case("mdlm", PLAIN, (4, 3), ("--gpus-per-node", "2"), ranks=2),
    "mdlm-lightning-2.2.1": Case("mdlm", PLAIN, (4, 3), old_lightning=True),
}
SHORT = "steps=2,milestone=1,blocks=1"
ROUNDS = "steps=4,round=2,milestone=2,blocks=1"
FROM_TEACHER = ("--student-init", "teacher")
"""On owt the default of di4c is a published student, which is not to be had here."""
ON_OWT = {
    f"{case.recipe}-owt": replace(case, dataset="owt")
    for case in (
        Case("mdlm", SHORT),
        Case("duo", SHORT),
        Case("candi", SHORT),
        Case("flm", SHORT, pinned=False),
        Case("duo_dcd", ROUNDS, teacher="duo-owt"),
        Case("mdlm_sdtt", ROUNDS, teacher="mdlm-owt", pinned=False),
        Case("mdlm_di4c", SHORT, flags=FROM_TEACHER, teacher="mdlm-owt"),
        Case("duo_di4c", SHORT, flags=FROM_TEACHER, teacher="duo-owt"),
    )
}
Finished = Callable[[str], Project]


@pytest.fixture(scope="session")
def finished(
    trials: Project, at_neighbours: Callable[[str], Any], request: pytest.FixtureRequest
) -> Finished:
    """Runs a case straight through, once; its teacher's before it."""
    done: dict[str, Project] = {}

    def finished_run(name: str) -> Project:
        if name not in done:
            case = (CASES | ON_OWT)[name]
            require_checkout(case.upstream)
            if case.dataset != "lm1b":
                prepared = trials.dlbhpc("data", "prepare", case.dataset, "--trial")
                assert prepared.returncode == 0, prepared.stderr
            if case.teacher is not None:
                finished_run(case.teacher)
            is_base = name in (case.recipe, f"{case.recipe}-{case.dataset}")
            run = replace(trials, recipe=case.recipe, dataset=case.dataset)
            run = run if is_base else replace(run, name=name)
            if case.ranks > 1:
                devices = {"SHIM_CUDA_DEVICES": str(case.ranks)}
                run = replace(run, environment={**run.environment, **devices})
            if case.old_lightning:
                run = replace(run, python=request.getfixturevalue("old_python"))
            if not case.pinned:
                run = replace(run, checkout=at_neighbours(case.upstream))
            finish(run, *case.flags, sizes=case.sizes)
            done[name] = run
        return done[name]

    return finished_run


@pytest.mark.parametrize("name", CASES)
def test_preempted_and_killed_it_ends_with_the_same_bits(name: str, finished: Finished) -> None:
    case, straight = CASES[name], finished(name)
    first, second = case.updates
    run = frozen_after(replace(straight, name=f"interrupted-{name}"), first, second)
    run.start(*case.flags, sizes=case.sizes)
    wait_until_frozen(run, 1, case.ranks)
    assert run.dlbhpc("preempt", str(run.output.folder)).returncode == 0
    wait_until_frozen(run, 2, case.ranks)
    run.kill_everything()
    finish(run, *case.flags, sizes=case.sizes)
    preempted, killed, last = run.report()["attempts"]
    ends = [attempt["end"] for attempt in (preempted, killed, last)]
    assert ends == ["preempted", "interrupted", "completed"], tail(run)
    assert preempted["to_step"] == killed["from_step"] == first, tail(run)
    assert first <= last["from_step"] <= first + second, tail(run)
    assert identical(last_state(run), last_state(straight))


CACHES = {
    "lm1b": ("lm1b_train_bs32", "lm1b_test_bs32"),
    "owt": ("openwebtext-train_train_bs64", "openwebtext-valid_validation_bs64"),
}


@pytest.mark.parametrize(
    "name", [*(name for name, case in CASES.items() if name == case.recipe), *ON_OWT]
)
def test_it_loads_the_bridged_cache_and_makes_no_other(name: str, finished: Finished) -> None:
    run, case = finished(name), (CASES | ON_OWT)[name]
    cache = run.root / "data" / "trials" / "training_cache" / case.upstream / case.dataset
    for folder in CACHES[case.dataset]:
        assert f"Loading data from: {cache / folder}_wrapped.dat" in log(run)
    assert "Generating new data" not in log(run)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.teacher])
def test_a_student_starts_as_its_teacher(name: str, finished: Finished) -> None:
    """Which lies further from new weights than the student's few steps carry it."""
    student, teacher = finished(name), finished(CASES[name].teacher or "")
    assert distance(student, teacher) < 0.001


def test_a_student_may_start_from_scratch(finished: Finished) -> None:
    teacher = finished("duo")
    student = replace(teacher, recipe="duo_di4c", name="from-scratch")
    finish(student, "--student-init", "scratch", sizes="steps=1,milestone=1,blocks=1")
    assert distance(student, teacher) > 0.01


def distance(student: Project, teacher: Project) -> float:
    """The largest difference of any weight in the blocks that both have."""
    ours, theirs = last_state(student)["state_dict"], last_state(teacher)["state_dict"]
    blocks = [name for name in theirs if name.startswith("backbone.blocks.0.")]
    assert len(blocks) > 5
    return max(float((ours[name] - theirs[name]).abs().max()) for name in blocks)


def test_hazard_6_the_rounds_of_sdtt_begin_where_they_shall(finished: Finished) -> None:
    assert "Doubling `dt`! New effective number of steps: 512" in log(finished("mdlm_sdtt"))


def test_hazard_7_the_teacher_of_a_round_is_the_student_that_it_began_with(
    finished: Finished,
) -> None:
    """Not the one that distillation began with, nor the newest student."""
    student, base = last_state(finished("duo_dcd")), last_state(finished("duo"))
    name = "blocks.0.attn_qkv.weight"
    of_round = student["shared"]["teacher"]["weights"][name]
    for other in (student["state_dict"], base["state_dict"]):
        assert not identical(of_round, other[f"backbone.{name}"])


def test_hazard_11_the_locked_decay_is_that_of_the_checkpoint(finished: Finished) -> None:
    """Not the decay of the teacher, which its checkpoint names."""
    decays = [last_state(finished(name))["ema"]["decay"] for name in ("duo", "duo_dcd")]
    assert decays == [0.9999, 0.999]
