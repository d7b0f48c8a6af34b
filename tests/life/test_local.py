"""A run on this machine lives through whatever ends its attempts."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

import pytest

from dlbhpc.run.completion import read_completed
from dlbhpc.run.history import read_attempts, read_events
from tests.life.conftest import Project, eventually

pytestmark = pytest.mark.slow
torch = pytest.importorskip("torch", reason="trains a real model")


def state_of(project: Project) -> dict[str, Any]:
    """Everything that the optimizer's last step left: weights, optimizer, EMA."""
    content = torch.load(project.output.folder / "model.ckpt", weights_only=False)
    return {key: content[key] for key in ("state_dict", "optimizer_states", "ema", "global_step")}


def identical(one: Any, other: Any) -> bool:
    """Bit for bit, however deep."""
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(identical(one[k], other[k]) for k in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(identical, one, other))
    return bool(one == other)


@pytest.fixture(scope="module")
def uninterrupted(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The state that 20 uninterrupted steps end with."""
    import shutil

    root = tmp_path_factory.mktemp("uninterrupted")
    shutil.copytree(prepared / "data", root / "data")
    project = Project(root)
    done = project.submit("--follow")
    assert done.returncode == 0, done.stdout + done.stderr
    return state_of(project)


def test_a_preempted_run_requeues_and_ends_with_the_same_bits(
    project: Project, uninterrupted: Any
) -> None:
    project.start()
    eventually(lambda: project.progress(1) >= 3, "step 3 is made")
    asked = project.dlbhpc("preempt", str(project.output.folder))
    assert asked.returncode == 0, asked.stderr
    project.wait_for_end()
    report = project.report()
    assert report["state"] == "completed"
    assert [attempt["end"] for attempt in report["attempts"]] == ["preempted", "completed"]
    assert report["attempts"][1]["from_step"] == report["attempts"][0]["to_step"] > 0
    assert report["steps_repeated"] == 0
    assert identical(state_of(project), uninterrupted)


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
    eventually(lambda: project.progress(1) >= 2, "step 2 is made")
    assert project.dlbhpc("cancel", str(project.output.folder)).returncode == 0
    project.wait_for_end()
    report = project.report()
    assert report["state"] == "cancelled"
    assert len(report["attempts"]) == 1
    assert project.submit("--follow").returncode == 0
    report = project.report()
    assert report["state"] == "completed"
    assert report["attempts"][1]["from_step"] == report["attempts"][0]["to_step"]


def test_without_grace_the_newest_step_directory_is_used(project: Project) -> None:
    project.start()
    eventually(lambda: (project.output.steps / "step-00000005").exists(), "a milestone is there")
    assert project.dlbhpc("preempt", str(project.output.folder), "--grace", "0").returncode == 0
    eventually(lambda: project.output.attempt(2).exists(), "the job is requeued")
    project.wait_for_end()
    report = project.report()
    assert report["state"] == "completed"
    assert report["attempts"][1]["from_step"] >= 5
    assert report["attempts"][0]["end"] is None, "nothing of ours was alive to say why"


def test_killed_at_random_moments_it_ends_with_the_same_bits(
    project: Project, uninterrupted: Any
) -> None:
    """SIGKILL to the whole tree at 20 random moments, and a new submission after each."""
    chance = random.Random()
    kills = 0
    while kills < 20 and read_completed(project.output) is None:
        project.start()
        attempt = len(list(project.output.attempts.glob("*")))
        # Moments from the first second of an attempt to well into its training.
        if chance.random() < 0.7:
            eventually(
                lambda seen=attempt: project.progress(seen + 1) or not project.processes(),
                "the attempt trains",
            )
            time.sleep(chance.uniform(0, 0.3))
        else:
            time.sleep(chance.uniform(0, 4))
        project.kill_everything()
        kills += 1
    assert project.submit("--follow").returncode == 0
    assert kills >= 3, "the run was over before it was killed"
    assert identical(state_of(project), uninterrupted)


def test_no_resume_starts_afresh_and_keeps_what_was_there(project: Project) -> None:
    project.start()
    eventually(lambda: (project.output.steps / "step-00000005").exists(), "a milestone is there")
    project.kill_everything()
    assert project.submit("--no-resume", "--follow").returncode == 0
    (attempt,) = read_attempts(project.output)
    assert attempt.resumed_from == 0
    aside = project.output.folder / "set_aside" / "001"
    assert (aside / "steps" / "step-00000005" / "COMPLETE.json").is_file()


def test_a_crash_of_the_training_is_not_requeued_and_keeps_its_status(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    project.start()
    eventually(lambda: project.progress(1) >= 1, "the training runs")
    events = read_events(project.output.attempt(1))
    assert events[0]["event"] == "start"
    import os
    import signal

    from dlbhpc.scheduler.processes import STEP_VARIABLE, marked
    from dlbhpc.scheduler.submission import live_lease

    lease = live_lease(project.output)
    assert lease is not None
    for pid in marked(STEP_VARIABLE, lease.job_id):
        os.kill(pid, signal.SIGSEGV)
    project.wait_for_end()
    (attempt,) = read_attempts(project.output)
    assert (attempt.reason, attempt.status) == ("upstream failed", 128 + signal.SIGSEGV)
