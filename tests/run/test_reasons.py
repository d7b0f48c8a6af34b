"""Why an attempt ended, decided from facts alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dlbhpc.exit_status import FENCED, REQUEUE, STORAGE
from dlbhpc.run.reasons import RULES, Ending, Reason, exit_status_of, reason_of

ENDING = Ending(
    status=0,
    stop_requested=False,
    cancelled=False,
    final_step_proven=False,
    attempts_without_step=0,
)

CASES = [
    ("exit 0 with the last step proven", {"final_step_proven": True}, Reason.COMPLETED, 0),
    ("exit 0 alone proves nothing", {}, Reason.STOPPED_EARLY, 1),
    (
        "exit 0 after a stop request is Lightning's own handler",
        {"stop_requested": True},
        Reason.PREEMPTED,
        REQUEUE,
    ),
    ("the callback left on request", {"status": REQUEUE}, Reason.PREEMPTED, REQUEUE),
    (
        "killed by the stop signal itself",
        {"status": 143, "stop_requested": True},
        Reason.PREEMPTED,
        REQUEUE,
    ),
    (
        "the image vanished after a stop request",
        {"status": 135, "stop_requested": True},
        Reason.PREEMPTED,
        REQUEUE,
    ),
    (
        "srun's way to print a bus error",
        {"status": 121, "stop_requested": True},
        Reason.PREEMPTED,
        REQUEUE,
    ),
    ("a bus error nobody asked for", {"status": 135}, Reason.UPSTREAM_FAILED, 135),
    ("killed without a request", {"status": 137}, Reason.UPSTREAM_FAILED, 137),
    ("an exception in the upstream", {"status": 1}, Reason.UPSTREAM_FAILED, 1),
    (
        "an exception while stopping is no preemption",
        {"status": 1, "stop_requested": True},
        Reason.UPSTREAM_FAILED,
        1,
    ),
    (
        "failed after the last step",
        {"status": 3, "final_step_proven": True},
        Reason.UPSTREAM_FAILED,
        3,
    ),
    ("the disk is full", {"status": STORAGE}, Reason.STORAGE, STORAGE),
    ("a newer attempt took over", {"status": FENCED}, Reason.FENCED, FENCED),
    (
        "cancelled by the user",
        {"status": REQUEUE, "stop_requested": True, "cancelled": True},
        Reason.CANCELLED,
        1,
    ),
    (
        "cancelled in the moment of completion",
        {"cancelled": True, "final_step_proven": True},
        Reason.COMPLETED,
        0,
    ),
    (
        "the third attempt without a step",
        {"status": REQUEUE, "attempts_without_step": 3},
        Reason.NO_PROGRESS,
        1,
    ),
    (
        "the second attempt without a step",
        {"status": REQUEUE, "attempts_without_step": 2},
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
    assert exit_status_of(reason, ending.status) == exit_status


def test_every_reason_has_its_rule_and_only_a_preemption_runs_again_by_itself() -> None:
    assert set(RULES) == set(Reason)
    assert [reason for reason in Reason if RULES[reason].requeue] == [Reason.PREEMPTED]


def test_only_completion_exits_with_zero() -> None:
    for reason in Reason:
        for status in (0, 1, REQUEUE, 143):
            assert (exit_status_of(reason, status) == 0) is (reason is Reason.COMPLETED)
