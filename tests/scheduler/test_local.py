"""The embedded scheduler plays Slurm's part: it delivers requests and starts again."""

from __future__ import annotations

import os
import threading
import time
import uuid
from pathlib import Path

import pytest

from dlbhpc.layout import OutputLayout
from dlbhpc.scheduler.control import CANCEL, PREEMPT, Request, leave, was_cancelled
from dlbhpc.scheduler.local import LocalBatch, end_unattended
from dlbhpc.scheduler.processes import JOB_VARIABLE, STEP_VARIABLE, marked

OBEDIENT = """
trap 'exit 75' TERM USR2
touch "$READY"
while :; do sleep 0.05; done
"""
STUBBORN = OBEDIENT.replace("'exit 75'", "''")


class Job:
    """One execution of a batch script by the embedded scheduler, in a thread."""

    def __init__(self, folder: Path, script: str) -> None:
        self.id = uuid.uuid4().hex
        self.output = OutputLayout(folder)
        self.output.job.mkdir(parents=True, exist_ok=True)
        self.ready = folder / "ready"
        self.output.batch_script.write_text(f"READY={self.ready}\n{script}")
        self.result: tuple[int, str | None] | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        self.result = LocalBatch(self.output, "token")._run_once(self.id, 0)

    def when_ready(self) -> None:
        deadline = time.monotonic() + 30
        while not self.ready.exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def ask(self, action: str, grace: float) -> None:
        """Leave a request and wait until it was taken."""
        leave(self.output.control, Request(action, grace))
        deadline = time.monotonic() + 30
        while self.output.control.exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def end(self) -> tuple[int, str | None]:
        self._thread.join(60)
        assert self.result is not None
        assert marked(JOB_VARIABLE, self.id) == []
        return self.result


def test_a_script_that_ends_by_itself(tmp_path: Path) -> None:
    assert Job(tmp_path, "exit 7").end() == (7, None)


def test_a_preemption_asks_and_the_script_leaves(tmp_path: Path) -> None:
    job = Job(tmp_path, OBEDIENT)
    job.when_ready()
    job.ask(PREEMPT, 60)
    assert job.end() == (75, PREEMPT)


def test_what_does_not_leave_is_killed_after_the_grace_time(tmp_path: Path) -> None:
    job = Job(tmp_path, STUBBORN)
    job.when_ready()
    job.ask(PREEMPT, 0.2)
    assert job.end() == (137, PREEMPT)


def test_without_grace_nothing_is_asked(tmp_path: Path) -> None:
    job = Job(tmp_path, OBEDIENT)
    job.when_ready()
    job.ask(PREEMPT, 0)
    assert job.end() == (137, PREEMPT)


def test_a_cancel_after_a_preemption_counts(tmp_path: Path) -> None:
    job = Job(tmp_path, STUBBORN)
    job.when_ready()
    job.ask(PREEMPT, 600)
    job.ask(CANCEL, 0.2)
    assert job.end() == (137, CANCEL)
    assert was_cancelled(job.output.job, job.id)


@pytest.mark.parametrize("text", ["", '{"act', "[]", '{"action": "preempt"}'])
def test_a_torn_request_is_no_request(tmp_path: Path, text: str) -> None:
    job = Job(tmp_path, OBEDIENT)
    job.when_ready()
    job.output.control.write_text(text)
    deadline = time.monotonic() + 30
    while job.output.control.exists():
        assert time.monotonic() < deadline
    job.ask(PREEMPT, 60)
    assert job.end() == (75, PREEMPT)


def test_a_job_whose_scheduler_died_can_still_be_ended(tmp_path: Path) -> None:
    import subprocess

    job_id = uuid.uuid4().hex
    environment = os.environ | {JOB_VARIABLE: job_id, STEP_VARIABLE: job_id}
    orphan = subprocess.Popen(["sleep", "600"], env=environment)
    end_unattended(job_id, grace_seconds=30)
    assert orphan.wait(30) == -15
