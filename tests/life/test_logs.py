"""What `logs` prints of a whole run: each attempt's part, and what the other ranks said."""

from __future__ import annotations

import signal

import pytest

from dlbhpc.run.log import rank_log
from dlbhpc.scheduler.processes import marked, send
from tests.project import Project, eventually

pytestmark = pytest.mark.slow
pytest.importorskip("torch", reason="trains a real model")

SHAPE = ("--gpus-per-node", "2")
SIZES = "steps=20,batch=8"


def logs(project: Project, *flags: str) -> str:
    done = project.dlbhpc("logs", str(project.output.folder), *flags)
    assert done.returncode == 0, done.stderr
    return done.stdout


def rank_1(project: Project, attempt: int) -> list[int]:
    """The training process of rank 1."""
    training = project.training(attempt)
    return [pid for pid in marked("LOCAL_RANK", "1") if pid in training]


def test_each_attempt_of_a_requeued_job_has_its_part_of_the_log(project: Project) -> None:
    project.start(*SHAPE, sizes=SIZES)
    project.freeze_at(attempt=1, step=1)
    assert project.dlbhpc("preempt", str(project.output.folder)).returncode == 0
    project.wait_for_end()
    first, second = logs(project, "--attempt", "1"), logs(project, "--attempt", "2")
    assert "attempt 1 starts at step 0" in first
    assert "attempt 1 ended: preempted" in first
    assert "attempt 2" not in first
    assert "attempt 2 goes on from step" in second
    assert "attempt 1 starts" not in second
    assert logs(project).endswith(first + second)
    # Rank 0 speaks for all in the log; rank 1's words lie apart.
    assert rank_log(project.output.attempt(2), 1).exists()
    assert logs(project, "--rank", "1") == logs(project, "--attempt", "2", "--rank", "1")


def test_the_error_of_a_rank_above_0_is_shown_in_the_log(project: Project) -> None:
    project.start(*SHAPE, sizes=SIZES)
    project.freeze_at(attempt=1, step=1)
    with rank_log(project.output.attempt(1), 1).open("a") as file:
        file.write("what rank 1 died of\n")
    eventually(lambda: rank_1(project, 1), "rank 1 is found")
    send(rank_1(project, 1), signal.SIGKILL)
    send(project.training(1), signal.SIGCONT)
    project.wait_for_end()
    text = logs(project)
    assert "task 1: Exited with exit code 137" in text
    assert "rank 1 failed" in text
    assert "what rank 1 died of" in text
