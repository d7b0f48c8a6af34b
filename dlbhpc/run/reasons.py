"""Why an attempt ended, and what happens next: one table for every reason."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from dlbhpc.exit_status import FENCED, REQUEUE, STORAGE

NO_PROGRESS_LIMIT = 3
"""Attempts of one submission in a row without a new step, after which it does not run again."""

_IMAGE_VANISHED = (135, 121)
"""SIGBUS (128 + 7), also as srun prints -7: the image's file system went away under the process."""

_KILLED = 137
"""SIGKILL (128 + 9)."""


class Reason(str, Enum):
    """Why an attempt ended. The value is what records and tables show."""

    COMPLETED = "completed"
    NOT_BEGUN = "could not begin"
    PREEMPTED = "preempted"
    TIME_LIMIT = "time limit"
    UNKNOWN = "unknown"
    NODE_FAILURE = "node failure"
    STOPPED_EARLY = "stopped early"
    UPSTREAM_FAILED = "upstream failed"
    OUT_OF_MEMORY = "out of memory"
    KILLED = "killed"
    STORAGE = "storage"
    FENCED = "fenced"
    CANCELLED = "cancelled"
    NO_PROGRESS = "no progress"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True)
class Rule:
    """What follows one reason: whether we run the job again, and what a user reads."""

    requeue: bool
    advice: str


RULES: dict[Reason, Rule] = {
    Reason.COMPLETED: Rule(False, "the selected checkpoint is published"),
    Reason.NOT_BEGUN: Rule(False, "mend what the message says, then submit again"),
    Reason.PREEMPTED: Rule(True, "it runs again and goes on from the newest step"),
    Reason.TIME_LIMIT: Rule(
        True, "the job's time was over; it runs again and goes on from the newest step"
    ),
    Reason.UNKNOWN: Rule(
        True, "it was asked to stop and the scheduler does not say why; it runs again"
    ),
    Reason.NODE_FAILURE: Rule(
        False, "a node was lost; Slurm runs the job again, and it goes on from the newest step"
    ),
    Reason.STOPPED_EARLY: Rule(
        False,
        "the training program reported success before the last step; read the log, then submit "
        "again to go on from the newest step",
    ),
    Reason.UPSTREAM_FAILED: Rule(
        False, "the training program failed; read the log, mend the cause, then submit again"
    ),
    Reason.OUT_OF_MEMORY: Rule(
        False, "it used more memory than the job has; ask for more (memory), then submit again"
    ),
    Reason.KILLED: Rule(
        False,
        "the training was killed (SIGKILL), often because it used more memory than the job has; "
        "read the log, then submit again",
    ),
    Reason.STORAGE: Rule(
        False, "checkpoints could not be written; make room or mend the quota, then submit again"
    ),
    Reason.FENCED: Rule(False, "a newer attempt owns the run; this one left without writing"),
    Reason.CANCELLED: Rule(False, "cancelled by the user; submit again to go on"),
    Reason.NO_PROGRESS: Rule(
        False,
        f"{NO_PROGRESS_LIMIT} attempts in a row made no new step; read the log, then submit again",
    ),
    Reason.INTERRUPTED: Rule(
        False, "it ended without a word (killed, or the machine went down); submit again to go on"
    ),
}


class Cause(Enum):
    """What the scheduler says of a job whose tasks have ended."""

    NOTHING = "the job runs, and nothing is asked of it"
    UNKNOWN = "the scheduler does not answer"
    PREEMPTION = "it wants the job's place"
    TIME_LIMIT = "the job's time is over, or nearly"
    CANCEL = "somebody ends the job for good"
    PREEMPTED_BACK = "it wanted the job's place, and the job is back in the queue"
    NODE_FAILURE = "a node was lost, and the job is back in the queue"
    TAKEN_BACK = "the job is back in the queue"

    @property
    def is_requeued(self) -> bool:
        """Whether the scheduler runs the job again by itself: then nobody else may ask it to."""
        return self in _BACK


_BACK = {
    Cause.PREEMPTED_BACK: Reason.PREEMPTED,
    Cause.NODE_FAILURE: Reason.NODE_FAILURE,
    Cause.TAKEN_BACK: Reason.INTERRUPTED,
}
"""Why an attempt ended whose job is back in the queue, if it could not end by itself."""

_ASKED = {
    Cause.PREEMPTION: Reason.PREEMPTED,
    Cause.PREEMPTED_BACK: Reason.PREEMPTED,
    Cause.TIME_LIMIT: Reason.TIME_LIMIT,
    Cause.NODE_FAILURE: Reason.NODE_FAILURE,
}
"""Why a job was asked to stop, where the scheduler says so."""


@dataclass(frozen=True)
class Ending:
    """What is known on the batch host when the tasks are gone.

    ``status`` is the tasks' exit status (128 + N for signal N); ``final_step_proven`` says that a
    checkpoint holds the wanted last step *inside*; ``attempts_without_step`` counts the attempts of
    this submission in a row, this one included, that published no new step. ``memory_exceeded``
    says that Slurm told so; ``retries_left`` how many failures of the upstream may still be tried
    again. ``image_may_vanish`` says that a request to stop may have ended the helper that mounts
    the run's image: then the program fails in any way, by an import for one.
    """

    status: int
    stop_requested: bool
    cause: Cause
    final_step_proven: bool
    attempts_without_step: int
    memory_exceeded: bool = False
    retries_left: int = 0
    image_may_vanish: bool = False


def reason_of(ending: Ending) -> Reason:
    """The reason, from facts alone; neither exit status 0 nor a file's name proves completion."""
    if ending.status == FENCED:
        return Reason.FENCED
    if ending.status == 0 and ending.final_step_proven:
        return Reason.COMPLETED
    if ending.cause is Cause.CANCEL:
        return Reason.CANCELLED
    if ending.status == STORAGE:
        return Reason.STORAGE
    # A stop request may also end the program by the signal itself, or by a vanished image.
    asked_for = ending.status > 128 or ending.status in (0, *_IMAGE_VANISHED)
    asked_for = ending.stop_requested and (asked_for or ending.image_may_vanish)
    if ending.status == REQUEUE or asked_for:
        if ending.attempts_without_step >= NO_PROGRESS_LIMIT:
            return Reason.NO_PROGRESS
        return _ASKED.get(ending.cause, Reason.UNKNOWN)
    if ending.cause in _BACK:
        return _BACK[ending.cause]
    if ending.status == 0:
        return Reason.STOPPED_EARLY
    if ending.memory_exceeded:
        return Reason.OUT_OF_MEMORY
    return Reason.KILLED if ending.status == _KILLED else Reason.UPSTREAM_FAILED


def runs_again(reason: Reason, ending: Ending) -> bool:
    """Whether the job is to run again: by the reason's rule, or as one of the user's retries."""
    retried = (
        reason is Reason.UPSTREAM_FAILED
        and ending.retries_left > 0
        and ending.attempts_without_step < NO_PROGRESS_LIMIT
    )
    return RULES[reason].requeue or retried


def exit_status_of(reason: Reason, ending: Ending) -> int:
    """What the batch script exits with: 0 only when complete, an upstream's own status kept."""
    if reason is Reason.COMPLETED:
        return 0
    if runs_again(reason, ending):
        return REQUEUE
    if reason is Reason.FENCED:
        return FENCED
    # A program that reported success without its last step, or only asked to run again, failed.
    return ending.status if ending.status not in (0, REQUEUE) else 1


_BY_STATE = {
    "PREEMPTED": Reason.PREEMPTED,
    "TIMEOUT": Reason.TIME_LIMIT,
    "DEADLINE": Reason.TIME_LIMIT,
    "NODE_FAIL": Reason.NODE_FAILURE,
    "BOOT_FAIL": Reason.NODE_FAILURE,
    "OUT_OF_MEMORY": Reason.OUT_OF_MEMORY,
    "CANCELLED": Reason.CANCELLED,
}


def reason_without_word(state: str | None, *, cancelled: bool = False) -> Reason:
    """Why an attempt ended that could not say so itself.

    ``state`` is the word of Slurm's accounting for that execution of the job (None when unknown),
    ``cancelled`` that the user cancelled the job. No state of Slurm's makes a run complete.
    """
    if cancelled:
        return Reason.CANCELLED
    return _BY_STATE.get(state or "", Reason.INTERRUPTED)
