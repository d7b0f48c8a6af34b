"""A run on this machine lives through whatever ends its attempts."""

from __future__ import annotations

import json
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dlbhpc.run.completion import read_completed
from dlbhpc.run.history import read_attempts
from dlbhpc.scheduler.processes import send
from tests.project import Project, eventually, identical

pytestmark = pytest.mark.slow
KILLS = 20
pytest.importorskip("torch", reason="trains a real model")


@pytest.fixture(scope="module")
def uninterrupted(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The state that 20 uninterrupted steps end with."""
    import shutil

    root = tmp_path_factory.mktemp("uninterrupted")
    shutil.copytree(prepared / "data", root / "data")
    project = Project(root)
    done = project.submit("--follow")
    assert done.returncode == 0, done.stdout + done.stderr
    return project.state()


def test_a_preempted_run_requeues_and_ends_with_the_same_bits(
    project: Project, uninterrupted: Any
) -> None:
    project.start()
    project.freeze_at(attempt=1, step=1)
    asked = project.dlbhpc("preempt", str(project.output.folder))
    assert asked.returncode == 0, asked.stderr
    project.wait_for_end()
    report = project.report()
    assert report["state"] == "completed"
    assert [attempt["end"] for attempt in report["attempts"]] == ["preempted", "completed"]
    assert report["attempts"][1]["from_step"] == report["attempts"][0]["to_step"] > 0
    assert report["steps_repeated"] == 0
    assert identical(project.state(), uninterrupted)


def test_a_finished_run_is_skipped_and_another_identity_is_refused(project: Project) -> None:
    done = project.submit("--follow", sizes="steps=3")
    assert done.returncode == 0, done.stdout + done.stderr
    before = {p: p.stat().st_mtime_ns for p in project.output.folder.rglob("*") if p.is_file()}
    again = project.submit("--follow", sizes="steps=3")
    assert (again.returncode, "already complete" in again.stdout) == (0, True)
    other = project.submit("--seed", "7", sizes="steps=3")
    assert other.returncode == 2
    assert "another identity (it differs in" in other.stderr
    changed = {
        p.name
        for p in project.output.folder.rglob("*")
        if p.is_file() and before.get(p) != p.stat().st_mtime_ns
    }
    assert changed <= {"lease.json"}
    # A trial completes no locked run: that one would have to train first.
    locked = project.dlbhpc("submit", "--recipe", "reference_mdlm", "--dry-run", "--json")
    assert "trials" not in json.loads(locked.stdout)["output"]


def test_a_second_submission_is_refused_while_the_job_lives(project: Project) -> None:
    project.start()
    second = project.submit()
    assert second.returncode == 2
    assert "which is still alive" in second.stderr
    eventually(lambda: project.progress(1) >= 1, "the first goes on undisturbed")


def test_a_cancelled_run_is_not_requeued_and_a_new_submission_goes_on(project: Project) -> None:
    project.start()
    project.freeze_at(attempt=1, step=1)
    assert project.dlbhpc("cancel", str(project.output.folder)).returncode == 0
    project.wait_for_end()
    report = project.report()
    assert report["state"] == "cancelled"
    assert len(report["attempts"]) == 1
    assert project.submit("--follow").returncode == 0
    report = project.report()
    assert report["state"] == "completed"
    assert report["attempts"][1]["from_step"] == report["attempts"][0]["to_step"]


def kill_again_and_again(project: Project, sizes: str, most: int) -> int:
    """Kill the whole tree at random moments, submitting after each; returns how often."""
    chance = random.Random()
    for kills in range(most):
        before = project.told()
        project.start(sizes=sizes)
        # Two of three moments lie in the training and in its saves, the others anywhere before.
        if chance.random() < 0.67:
            eventually(
                lambda seen=before: project.told() - seen or not project.processes(),
                "the attempt trains, or has nothing left to do",
            )
            time.sleep(chance.uniform(0, 0.2))
        else:
            time.sleep(chance.uniform(0, 4))
        project.kill_everything()
        if read_completed(project.output) is not None:
            return kills
    return most


def test_killed_at_random_moments_it_ends_with_the_same_bits(
    new_project: Callable[..., Project],
) -> None:
    """SIGKILL to the whole tree at 20 random moments, and a new submission after each."""
    sizes = "steps=300,milestone=5"
    straight = new_project("straight")
    assert straight.submit("--follow", sizes=sizes).returncode == 0
    kills = 0
    while kills < KILLS:
        # Where the machine is fast, a run is over before it was killed often enough.
        killed = new_project(f"killed-after-{kills}")
        survived = kill_again_and_again(killed, sizes, KILLS - kills)
        assert survived > 0, "the run was over before it could be killed"
        kills += survived
        done = killed.submit("--follow", sizes=sizes)
        assert done.returncode == 0, done.stdout + done.stderr
        assert identical(killed.state(), straight.state())
        steps = [item.resumed_from for item in read_attempts(killed.output)]
        assert steps == sorted(steps), "an attempt went back behind an earlier one"


def test_a_crash_of_the_training_is_not_requeued_and_keeps_its_status(project: Project) -> None:
    project.start()
    project.freeze_at(attempt=1, step=1)
    training = project.training(1)
    send(training, signal.SIGSEGV)
    send(training, signal.SIGCONT)
    project.wait_for_end()
    (attempt,) = read_attempts(project.output)
    assert (attempt.reason, attempt.status) == ("upstream failed", 128 + signal.SIGSEGV)
