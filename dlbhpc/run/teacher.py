"""A student that was submitted before its teacher had finished: its identity is completed later.

The teacher's digest belongs to the student's identity, and is known only when the teacher's run is
complete. Until the first attempt begins then, the identity names the teacher's run instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from dlbhpc.errors import DlbhpcError
from dlbhpc.inputs.teaching import check_launch_teacher
from dlbhpc.layout import OutputLayout
from dlbhpc.run import completion
from dlbhpc.run.history import read_attempts
from dlbhpc.run.reasons import Reason
from dlbhpc.run.record import Run, write_records

_PENDING = "pending: "


def pending_teacher(run_folder: Path) -> str:
    """What stands in the identity of a student until the run in the folder is complete."""
    return f"{_PENDING}{run_folder}"


def is_pending(identity: Mapping[str, Any]) -> bool:
    return str(identity.get("teacher")).startswith(_PENDING)


def same_run(identity: Mapping[str, Any], recorded: Mapping[str, Any]) -> dict[str, Any]:
    """``identity`` as far as it can be compared with a ``recorded`` one.

    A teacher that was still pending then is no difference: nothing was trained with it yet.
    """
    if is_pending(recorded):
        return {**identity, "teacher": recorded["teacher"]}
    return dict(identity)


def settle_teacher(run: Run) -> Run:
    """The run with its teacher's digest in its identity, recorded once and for ever.

    Raises DlbhpcError when the teacher's run is not complete, with the reason why it ended, and
    when its result cannot teach this student.
    """
    if run.teacher_run is None or not is_pending(run.identity):
        return run
    teacher = OutputLayout(run.teacher_run)
    completed = completion.read_completed(teacher)
    if completed is None:
        raise DlbhpcError(
            f"the teacher failed: {why_unfinished(teacher)}; its run is {teacher.folder}: mend "
            "that, then submit this run --with-teacher again"
        )
    completion.check_intact(teacher, completed, content=True)
    check_launch_teacher(run.launch)
    digest = completed["checkpoint_sha256"]
    settled = replace(run, identity={**run.identity, "teacher": digest})
    write_records(settled)
    return settled


def why_unfinished(teacher: OutputLayout) -> str:
    """Why the last attempt of an unfinished run ended, in the words of the table of reasons."""
    attempts = read_attempts(teacher)
    if not attempts:
        return "its job ended before it began"
    return attempts[-1].reason or Reason.INTERRUPTED.value
