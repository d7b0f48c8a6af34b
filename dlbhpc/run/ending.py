"""One attempt ends, on the batch host: the run is complete, or its record says why not."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from dlbhpc.exit_status import FENCED
from dlbhpc.files import file_digest, read_json, write_json
from dlbhpc.layout import OutputLayout
from dlbhpc.run import completion
from dlbhpc.run.history import Attempt, attempts_without_step, read_attempts, told_status
from dlbhpc.run.reasons import RULES, Cause, Ending, Reason, exit_status_of, reason_of, runs_again
from dlbhpc.run.record import read_run
from dlbhpc.steps import list_steps, newest_attempt

SCHEMA_VERSION = 1
Say = Callable[[str], None]


def end(folder: Path, status: int, cause: Cause, say: Say, *, memory_exceeded: bool = False) -> int:
    """End an attempt: complete the run, or say why not. Returns the batch script's exit status.

    ``status`` is the tasks' exit status, ``cause`` what the scheduler says of the job, and
    ``memory_exceeded`` whether Slurm told that the tasks used too much memory.
    """
    attempt = read_json(folder / "attempt.json")
    run = read_run(OutputLayout(Path(attempt["output"])))
    output = run.launch.output
    number = int(attempt["attempt"])
    told = told_status(folder)
    if newest_attempt(output.steps) > number:
        status = FENCED
    elif told is not None and status != 0:
        status = told
    final = None if status == FENCED else completion.find_final(run)
    attempts = read_attempts(output)
    submission = str(attempt.get("submission") or attempt["job_id"])
    newest = max((record.step for record in list_steps(output.steps)), default=0)
    ending = Ending(
        status=status,
        stop_requested=(folder / "stop").exists(),
        cause=cause,
        final_step_proven=final is not None,
        attempts_without_step=attempts_without_step(attempts, newest, submission),
        memory_exceeded=memory_exceeded,
        retries_left=run.retries - _failures(attempts, submission),
        image_may_vanish=run.image is not None and run.image.mount == "fuse",
    )
    reason = reason_of(ending)
    if reason is Reason.COMPLETED and final is not None:
        provenance = read_json(output.provenance)
        selected = completion.publish(
            run, final, provenance["identity"], file_digest(output.composed_config)
        )
        say(f"published {selected}")
    advice = RULES[reason].advice
    if runs_again(reason, ending) and not RULES[reason].requeue:
        advice = f"the training program failed; it is tried again ({ending.retries_left} left)"
    # A newer attempt may have said already why this one ended.
    if reason is not Reason.FENCED or not (folder / "end.json").exists():
        write_end(folder, reason, status, advice)
    say(f"attempt {number} ended: {reason.value} (exit status {status}); {advice}")
    return exit_status_of(reason, ending)


def settle(output: OutputLayout, why: Callable[[Attempt], Reason], say: Say) -> None:
    """Say for attempts that are over, and could not say so themselves, why they ended.

    To be called by the job that owns the run, before its own attempt begins.
    """
    for attempt in read_attempts(output):
        if attempt.reason is None:
            reason = why(attempt)
            write_end(attempt.folder, reason, None, RULES[reason].advice)
            say(f"attempt {attempt.number} ended without a word: {reason.value}")


def want_requeue(folder: Path, why: str) -> None:
    """Mark an ended attempt: its job was to run again, and could not be put into the queue."""
    path = folder / "end.json"
    advice = f"it was to run again, and the job could not requeue itself ({why}): submit again"
    write_json(path, read_json(path) | {"requeue_wanted": True, "advice": advice})


def write_end(folder: Path, reason: Reason, status: int | None, advice: str) -> None:
    """Write why an attempt ended; ``status`` is its tasks' exit status, None when unknown."""
    write_json(
        folder / "end.json",
        {
            "schema_version": SCHEMA_VERSION,
            "reason": reason.value,
            "status": status,
            "advice": advice,
            "time": time.time(),
        },
    )


def _failures(attempts: list[Attempt], submission: str) -> int:
    """How many attempts of this submission have failed before."""
    return sum(
        attempt.submission == submission and attempt.reason == Reason.UPSTREAM_FAILED.value
        for attempt in attempts
    )
