"""Why an attempt ended, and what happens next: one table for every reason."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from dlbhpc.exit_status import FENCED, REQUEUE, STORAGE

NO_PROGRESS_LIMIT = 3
"""Attempts of one job in a row without a new step, after which it is not requeued again."""

_IMAGE_VANISHED = (135, 121)
"""SIGBUS (128 + 7), also as srun prints -7: the image's file system went away under the process."""


class Reason(str, Enum):
    """Why an attempt ended. The value is what records and tables show."""

    COMPLETED = "completed"
    NOT_BEGUN = "could not begin"
    PREEMPTED = "preempted"
    STOPPED_EARLY = "stopped early"
    UPSTREAM_FAILED = "upstream failed"
    STORAGE = "storage"
    FENCED = "fenced"
    CANCELLED = "cancelled"
    NO_PROGRESS = "no progress"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True)
class Rule:
    """What follows one reason: whether the job runs again by itself, and what a user reads."""

    requeue: bool
    advice: str


RULES: dict[Reason, Rule] = {
    Reason.COMPLETED: Rule(False, "the selected checkpoint is published"),
    Reason.NOT_BEGUN: Rule(False, "mend what the message says, then submit again"),
    Reason.PREEMPTED: Rule(True, "it runs again and goes on from the newest step"),
    Reason.STOPPED_EARLY: Rule(
        False,
        "the training program reported success before the last step; read the log, then submit "
        "again to go on from the newest step",
    ),
    Reason.UPSTREAM_FAILED: Rule(
        False, "the training program failed; read the log, mend the cause, then submit again"
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


@dataclass(frozen=True)
class Ending:
    """What is known on the batch host when the tasks are gone.

    ``status`` is the tasks' exit status (128 + N for signal N); ``final_step_proven`` says that a
    checkpoint holds the wanted last step *inside*; ``attempts_without_step`` counts the attempts of
    this job in a row, this one included, that published no new step. ``taken_back`` says that the
    scheduler has put the job back into its queue already.
    """

    status: int
    stop_requested: bool
    cancelled: bool
    final_step_proven: bool
    attempts_without_step: int
    taken_back: bool = False


def reason_of(ending: Ending) -> Reason:
    """The reason, from facts alone; neither exit status 0 nor a file's name proves completion."""
    if ending.status == FENCED:
        return Reason.FENCED
    if ending.status == 0 and ending.final_step_proven:
        return Reason.COMPLETED
    if ending.cancelled:
        return Reason.CANCELLED
    if ending.status == STORAGE:
        return Reason.STORAGE
    # A stop request may also end the program by the signal itself, or by a vanished image.
    signalled = ending.status > 128 or ending.status in _IMAGE_VANISHED
    if ending.status == REQUEUE or (ending.stop_requested and (signalled or ending.status == 0)):
        if ending.attempts_without_step >= NO_PROGRESS_LIMIT:
            return Reason.NO_PROGRESS
        return Reason.PREEMPTED
    if ending.taken_back:
        return Reason.INTERRUPTED
    if ending.status == 0:
        return Reason.STOPPED_EARLY
    return Reason.UPSTREAM_FAILED


def exit_status_of(reason: Reason, status: int) -> int:
    """What the batch script exits with: 0 only when complete, an upstream's own status kept."""
    if reason is Reason.COMPLETED:
        return 0
    if RULES[reason].requeue:
        return REQUEUE
    if reason is Reason.FENCED:
        return FENCED
    # A program that reported success without its last step, or only asked to run again, failed.
    return status if status not in (0, REQUEUE) else 1
