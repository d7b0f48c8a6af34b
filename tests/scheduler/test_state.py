"""What a run's state is called: every row is facts, and the word for them."""

from __future__ import annotations

import pytest

from dlbhpc.scheduler.queue import QueuedJob
from dlbhpc.scheduler.state import Facts, state_of


def queued(state: str, reason: str = "None") -> Facts:
    return Facts(
        queued=QueuedJob("41", state, reason, "dlbhpc-duo-owt", "dlbhpc:t"),
        owned=True,
        job_id="41",
        attempt_of="41",
    )


def gone(accounted: str = "", **facts: object) -> Facts:
    """The job's attempt ended without a word of ours, and the job is not in the queue."""
    return Facts(**{"job_id": "41", "attempt_of": "41", "accounted": accounted, **facts})  # type: ignore[arg-type]


TABLE = [
    ("nothing was ever begun", Facts(), "not begun"),
    ("the record of completion counts", Facts(completed=True, answered=False), "completed"),
    ("a controller that is away", Facts(answered=False, owned=True, job_id="41"), "unknown"),
    ("waiting", queued("PENDING", "Resources"), "pending"),
    ("running", queued("RUNNING"), "running"),
    ("a local job", Facts(owned=True, job_id="41"), "running"),
    ("between the lease and its job", Facts(owned=True, attempt_of="40"), "submitting"),
    ("about to end", queued("COMPLETING"), "completing"),
    ("put back", queued("REQUEUED"), "requeued"),
    ("asked by a signal", queued("SIGNALING"), "running"),
    ("held after it was put back", queued("REQUEUE_HOLD"), "held"),
    ("held for a reservation", queued("RESV_DEL_HOLD"), "held"),
    ("held by an exit status", queued("SPECIAL_EXIT"), "held"),
    ("held by the user", queued("PENDING", "JobHeldUser"), "held"),
    ("held by an administrator", queued("PENDING", "JobHeldAdmin"), "held"),
    ("launches failed", queued("PENDING", "launch failed requeued held"), "held"),
    ("revoked", queued("REVOKED"), "unknown"),
    ("a state of a later Slurm", queued("UNKNOWN_NEW"), "unknown"),
    ("preempted for good", queued("PREEMPTED"), "needs resubmit"),
    ("ended, still listed", queued("COMPLETED"), "interrupted"),
    ("failed, still listed", queued("FAILED"), "interrupted"),
    ("no accounting", gone(), "interrupted"),
    ("the time limit, unannounced", gone("TIMEOUT"), "needs resubmit"),
    ("a lost node", gone("NODE_FAIL"), "needs resubmit"),
    ("a node that did not boot", gone("BOOT_FAIL"), "needs resubmit"),
    ("out of memory", gone("OUT_OF_MEMORY"), "out of memory"),
    ("scancel by anybody", gone("CANCELLED by 1000"), "cancelled"),
    ("dlbhpc cancel", gone(cancelled=True), "cancelled"),
    ("preempted by cancelling", gone("PREEMPTED"), "needs resubmit"),
    ("Slurm calls it complete", gone("COMPLETED"), "interrupted"),
    ("a word of a later Slurm", gone("UNKNOWN_NEW"), "interrupted"),
    ("an attempt that said completed", gone(reason="completed"), "interrupted"),
    ("saved, but no job goes on", gone(reason="preempted"), "needs resubmit"),
    ("retried in vain", gone(reason="upstream failed", refused=True), "needs resubmit"),
    ("the program failed", gone(reason="upstream failed"), "upstream failed"),
    ("accounting does not overrule us", gone("TIMEOUT", reason="cancelled"), "cancelled"),
    ("no log", gone(attempt_of=None, log_exists=False, accounted="FAILED", lasted=0), "log path"),
    ("no log, no accounting", gone(attempt_of=None, log_exists=False), "log path"),
    ("a later job left no log", gone(attempt_of="40", log_exists=False), "log path"),
    ("it ran before it ended", gone(attempt_of=None, log_exists=False, lasted=9), "interrupted"),
    ("it printed something", gone(attempt_of="40", log_exists=True), "interrupted"),
    ("cancelled in the queue", gone("CANCELLED", attempt_of=None, log_exists=False), "cancelled"),
]


@pytest.mark.parametrize(
    ("facts", "name"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE]
)
def test_the_state_that_facts_mean(facts: Facts, name: str) -> None:
    assert state_of(facts).name == name


@pytest.mark.parametrize(
    "state",
    "COMPLETING REQUEUED REQUEUE_HOLD RESV_DEL_HOLD SPECIAL_EXIT SIGNALING PREEMPTED REVOKED "
    "COMPLETED UNKNOWN_NEW".split(),
)
def test_no_word_of_slurms_makes_a_run_complete(state: str) -> None:
    assert "complete" not in state_of(queued(state)).name.replace("completing", "")
    assert state_of(gone(state)).name != "completed"


@pytest.mark.parametrize("reason", ["JobHeldUser", "JobHeldAdmin", "launch failed requeued held"])
def test_what_is_held_says_why_and_how_to_release_it(reason: str) -> None:
    note = state_of(queued("PENDING", reason)).note
    assert reason in note
    assert "scontrol release 41" in note


def test_what_waits_says_for_what() -> None:
    assert "Priority" in state_of(queued("PENDING", "Priority")).note
    assert "never starts" in state_of(queued("PENDING", "DependencyNeverSatisfied")).note


def test_a_state_that_nobody_knows_is_shown_as_slurm_said_it() -> None:
    assert "UNKNOWN_NEW" in state_of(queued("UNKNOWN_NEW")).note


def test_a_job_that_left_no_log_names_the_path() -> None:
    state = state_of(gone(attempt_of=None, log_exists=False, log="/runs/a/job/41_0_log.out"))
    assert "/runs/a/job/41_0_log.out" in state.note


@pytest.mark.parametrize(
    ("facts", "ended_as"),
    [
        (gone("TIMEOUT"), "time limit"),
        (gone("PREEMPTED"), "preempted"),
        (gone(cancelled=True), "cancelled"),
        (gone(reason="upstream failed"), None),
    ],
)
def test_why_a_silent_job_ended_is_told_apart_from_what_an_attempt_said(
    facts: Facts, ended_as: str | None
) -> None:
    assert state_of(facts).ended_as == ended_as
