"""Why an attempt ended, decided from facts alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dlbhpc.exit_status import FENCED, REQUEUE, STORAGE
from dlbhpc.run.reasons import (
    RULES,
    Cause,
    Ending,
    Reason,
    exit_status_of,
    reason_of,
    reason_without_word,
    runs_again,
)

ENDING = Ending(
    status=0,
    stop_requested=False,
    cause=Cause.NOTHING,
    final_step_proven=False,
    attempts_without_step=0,
)

ASKED = {"status": REQUEUE, "cause": Cause.PREEMPTION}

CASES = [
    ("exit 0 with the last step proven", {"final_step_proven": True}, Reason.COMPLETED, 0),
    ("exit 0 alone proves nothing", {}, Reason.STOPPED_EARLY, 1),
    (
        "exit 0 after a stop request is Lightning's own handler",
        {"stop_requested": True, "cause": Cause.PREEMPTION},
        Reason.PREEMPTED,
        REQUEUE,
    ),
    ("the callback left on request", ASKED, Reason.PREEMPTED, REQUEUE),
    ("the time is nearly over", ASKED | {"cause": Cause.TIME_LIMIT}, Reason.TIME_LIMIT, REQUEUE),
    ("asked by nobody that is known", ASKED | {"cause": Cause.NOTHING}, Reason.UNKNOWN, REQUEUE),
    ("the controller is away", ASKED | {"cause": Cause.UNKNOWN}, Reason.UNKNOWN, REQUEUE),
    (
        "killed by the stop signal itself",
        ASKED | {"status": 143, "stop_requested": True},
        Reason.PREEMPTED,
        REQUEUE,
    ),
    (
        "the image vanished after a stop request",
        ASKED | {"status": 135, "stop_requested": True},
        Reason.PREEMPTED,
        REQUEUE,
    ),
    (
        "srun's way to print a bus error",
        ASKED | {"status": 121, "stop_requested": True},
        Reason.PREEMPTED,
        REQUEUE,
    ),
    (
        "an import fails, since FUSE's helper got the request too",
        ASKED | {"status": 1, "stop_requested": True, "image_may_vanish": True},
        Reason.PREEMPTED,
        REQUEUE,
    ),
    (
        "a failure in an image that stays",
        ASKED | {"status": 1, "stop_requested": True},
        Reason.UPSTREAM_FAILED,
        1,
    ),
    (
        "a failure in an image by FUSE that nobody asked to stop",
        {"status": 1, "image_may_vanish": True},
        Reason.UPSTREAM_FAILED,
        1,
    ),
    (
        "killed at the end of the grace time",
        ASKED | {"status": 137, "stop_requested": True},
        Reason.PREEMPTED,
        REQUEUE,
    ),
    ("a bus error nobody asked for", {"status": 135}, Reason.UPSTREAM_FAILED, 135),
    ("killed without a request", {"status": 137}, Reason.KILLED, 137),
    (
        "killed for its memory, as Slurm says",
        {"status": 137, "memory_exceeded": True},
        Reason.OUT_OF_MEMORY,
        137,
    ),
    (
        "killed for its memory, srun's highest status",
        {"status": 1, "memory_exceeded": True},
        Reason.OUT_OF_MEMORY,
        1,
    ),
    ("an exception in the upstream", {"status": 1}, Reason.UPSTREAM_FAILED, 1),
    (
        "an exception while stopping is no preemption",
        {"status": 1, "stop_requested": True, "cause": Cause.PREEMPTION},
        Reason.UPSTREAM_FAILED,
        1,
    ),
    (
        "failed after the last step",
        {"status": 3, "final_step_proven": True},
        Reason.UPSTREAM_FAILED,
        3,
    ),
    ("a retry is left", {"status": 3, "retries_left": 1}, Reason.UPSTREAM_FAILED, REQUEUE),
    (
        "a retry is left, but the last two made no step either",
        {"status": 3, "retries_left": 5, "attempts_without_step": 3},
        Reason.UPSTREAM_FAILED,
        3,
    ),
    ("memory is not tried again", {"status": 137, "retries_left": 1}, Reason.KILLED, 137),
    ("the disk is full", {"status": STORAGE}, Reason.STORAGE, STORAGE),
    ("a newer attempt took over", {"status": FENCED}, Reason.FENCED, FENCED),
    (
        "cancelled by the user",
        {"status": REQUEUE, "stop_requested": True, "cause": Cause.CANCEL},
        Reason.CANCELLED,
        1,
    ),
    (
        "cancelled in the moment of completion",
        {"cause": Cause.CANCEL, "final_step_proven": True},
        Reason.COMPLETED,
        0,
    ),
    ("a node was lost", {"status": 143, "cause": Cause.NODE_FAILURE}, Reason.NODE_FAILURE, 143),
    (
        "a node was lost, and the other ranks saved",
        {"status": REQUEUE, "cause": Cause.NODE_FAILURE},
        Reason.NODE_FAILURE,
        1,
    ),
    (
        "preempted, and back in the queue",
        ASKED | {"cause": Cause.PREEMPTED_BACK},
        Reason.PREEMPTED,
        REQUEUE,
    ),
    (
        "preempted without time to save",
        {"status": 137, "cause": Cause.PREEMPTED_BACK},
        Reason.PREEMPTED,
        REQUEUE,
    ),
    ("the job is back in the queue", {"cause": Cause.TAKEN_BACK}, Reason.INTERRUPTED, 1),
    (
        "the third attempt without a step",
        ASKED | {"attempts_without_step": 3},
        Reason.NO_PROGRESS,
        1,
    ),
    (
        "the second attempt without a step",
        ASKED | {"attempts_without_step": 2},
        Reason.PREEMPTED,
        REQUEUE,
    ),
]


@pytest.mark.parametrize(
    ("facts", "reason", "exit_status"),
    [case[1:] for case in CASES],
    ids=[case[0] for case in CASES],
)
def test_reason_and_exit_status(facts: dict[str, object], reason: Reason, exit_status: int) -> None:
    ending = replace(ENDING, **facts)
    assert reason_of(ending) is reason
    assert exit_status_of(reason, ending) == exit_status
    assert runs_again(reason, ending) is (exit_status == REQUEUE)


def test_every_reason_has_its_rule_and_only_a_stop_request_runs_again_by_itself() -> None:
    assert set(RULES) == set(Reason)
    assert [reason for reason in Reason if RULES[reason].requeue] == [
        Reason.PREEMPTED,
        Reason.TIME_LIMIT,
        Reason.UNKNOWN,
    ]


def test_only_completion_exits_with_zero() -> None:
    for reason in Reason:
        for status in (0, 1, REQUEUE, 143):
            ending = replace(ENDING, status=status)
            assert (exit_status_of(reason, ending) == 0) is (reason is Reason.COMPLETED)


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        ("PREEMPTED", Reason.PREEMPTED),
        ("TIMEOUT", Reason.TIME_LIMIT),
        ("NODE_FAIL", Reason.NODE_FAILURE),
        ("OUT_OF_MEMORY", Reason.OUT_OF_MEMORY),
        ("CANCELLED", Reason.CANCELLED),
        ("COMPLETED", Reason.INTERRUPTED),
        ("FAILED", Reason.INTERRUPTED),
        ("REQUEUED", Reason.INTERRUPTED),
        ("COMPLETING", Reason.INTERRUPTED),
        ("UNKNOWN_NEW", Reason.INTERRUPTED),
        (None, Reason.INTERRUPTED),
    ],
)
def test_what_slurms_accounting_says_is_never_taken_for_completion(
    state: str | None, reason: Reason
) -> None:
    assert reason_without_word(state) is reason
    assert reason_without_word(state, cancelled=True) is Reason.CANCELLED
