"""What a run's state is called, from facts alone: a pure function over two tables.

Only a completion record makes a run complete; no word of Slurm's ever does.
"""

from __future__ import annotations

from dataclasses import dataclass

from dlbhpc.run.reasons import RULES, Reason, reason_without_word
from dlbhpc.scheduler.queue import QueuedJob

UNKNOWN = "unknown"
HELD = "held"
NEEDS_RESUBMIT = "needs resubmit"
NOT_BEGUN = "not begun"

_IN_QUEUE = {
    "PENDING": "pending",
    "CONFIGURING": "configuring",
    "RUNNING": "running",
    "RESIZING": "running",
    "SIGNALING": "running",
    "SUSPENDED": "suspended",
    "STOPPED": "suspended",
    "COMPLETING": "completing",
    "STAGE_OUT": "completing",
    "REQUEUED": "requeued",
}
"""States of a job that Slurm still has in its queue, under the names that a table shows."""

_ENDED = frozenset(
    "COMPLETED FAILED CANCELLED TIMEOUT DEADLINE PREEMPTED NODE_FAIL BOOT_FAIL "
    "OUT_OF_MEMORY".split()
)
"""States of a job that is over, should the queue still list it."""

_GOES_ON = frozenset({Reason.PREEMPTED, Reason.TIME_LIMIT, Reason.NODE_FAILURE, Reason.UNKNOWN})
"""Reasons after which a run goes on; where no job is there any more, only a user can make it."""

_ADVICE = {reason.value: rule.advice for reason, rule in RULES.items()}


@dataclass(frozen=True)
class Facts:
    """What is known of a run.

    ``answered``: Slurm's controller told what is in its queue (or need not be asked). ``queued`` is
    the run's job there; ``owned`` says that a job or a submission owns the run as far as can be
    seen. ``job_id`` is the last job that is known, and ``log`` where its log lies. ``attempt_of``
    is the job of the newest attempt, None when nothing has begun, and ``reason`` why that attempt
    ended; ``refused`` says that its job was to run again and could not be put into the queue.
    ``cancelled``: the user cancelled the last job. ``accounted`` is how Slurm's accounting says
    that the last job ended, and ``lasted`` how many seconds it ran; "" and None when unknown.
    """

    completed: bool = False
    answered: bool = True
    queued: QueuedJob | None = None
    owned: bool = False
    job_id: str = ""
    attempt_of: str | None = None
    reason: str | None = None
    refused: bool = False
    cancelled: bool = False
    accounted: str = ""
    lasted: float | None = None
    log: str = ""
    log_exists: bool = True


@dataclass(frozen=True)
class State:
    """A run's state in a word or two, and what to do or know about it ("" for nothing)."""

    name: str
    note: str = ""
    ended_as: str | None = None
    """Why the last job ended, where nothing of ours could say so."""


def state_of(facts: Facts) -> State:
    """The state that these facts mean; what cannot be known is called unknown, never complete."""
    if facts.completed:
        return State(Reason.COMPLETED.value)
    if not facts.answered:
        return State(UNKNOWN, "Slurm does not answer; the job, if there is one, is not affected")
    if facts.queued is not None and _word(facts.queued.state) not in _ENDED:
        return _in_queue(facts.queued)
    if facts.queued is None and facts.owned:
        return State("running" if facts.job_id else "submitting")
    accounted = _word(facts.queued.state if facts.queued else facts.accounted)
    if facts.job_id and facts.attempt_of != facts.job_id:
        return _never_began(facts, accounted)
    if facts.attempt_of is None:
        return State(NOT_BEGUN)
    if facts.reason in (None, Reason.COMPLETED.value):
        # Without a completion record it is not complete, whatever the attempt said.
        return _silent(facts, accounted)
    if facts.refused:
        note = "the job was to run again, and could not be put into the queue: submit again"
        return State(NEEDS_RESUBMIT, note)
    if facts.reason in _GOES_ON:
        return _resubmit(facts.reason)
    return State(str(facts.reason), _ADVICE.get(str(facts.reason), ""))


def _in_queue(job: QueuedJob) -> State:
    state, reason = _word(job.state), job.reason
    if job.is_held:
        by = f" ({reason})" if reason not in ("", "None") else ""
        return State(HELD, f"held{by}: scontrol release {job.job_id}")
    name = _IN_QUEUE.get(state)
    if name is None:
        return State(UNKNOWN, f"Slurm calls job {job.job_id} {job.state}")
    if name != "pending" or reason in ("", "None"):
        return State(name)
    if reason == "DependencyNeverSatisfied":
        return State(
            name,
            f"never starts: what it waits for has failed; scancel {job.job_id}, then submit again",
        )
    return State(name, f"waits: {reason}")


def _silent(facts: Facts, accounted: str) -> State:
    reason = reason_without_word(accounted, cancelled=facts.cancelled)
    if reason in _GOES_ON:
        # PREEMPTED is final where preemption cancels: nothing of ours was alive to go on.
        return _resubmit(reason.value)
    return State(reason.value, _ADVICE[reason.value], reason.value)


def _resubmit(reason: str) -> State:
    return State(NEEDS_RESUBMIT, f"{reason}, and no job is there: submit again to go on", reason)


def _never_began(facts: Facts, accounted: str) -> State:
    """The last job is gone and had not begun an attempt."""
    reason = reason_without_word(accounted, cancelled=facts.cancelled)
    name = reason.value
    if reason is Reason.CANCELLED:
        return State(name, "cancelled before it began; submit again", name)
    if not facts.log_exists and not facts.lasted:
        return State(
            "log path",
            f"job {facts.job_id} ended at once and left no log: Slurm could not write {facts.log}; "
            "make sure that its folder can be written from the nodes, then submit again",
            "log path",
        )
    where = f"read {facts.log}, then " if facts.log_exists else ""
    return State(name, f"job {facts.job_id} ended before it began to train; {where}submit again")


def _word(state: str) -> str:
    # As in "CANCELLED by 1000" and "CANCELLED+".
    return state.split()[0].rstrip("+").upper() if state.strip() else ""
