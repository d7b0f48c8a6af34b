"""Finding the step to resume from: the newest valid one, whatever the pointer says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from dlbhpc.steps import files
from dlbhpc.steps.errors import InvalidStep, OtherContract, StepError, storage_errors
from dlbhpc.steps.fence import Fences, refuse_link, step_numbers
from dlbhpc.steps.names import step_name
from dlbhpc.steps.pointer import read_pointer, remove_pointer, write_pointer
from dlbhpc.steps.quarantine import remove_abandoned_work, set_aside
from dlbhpc.steps.record import StepRecord, match, read_record, verify

PointerState = Literal["current", "stale", "dangling", "missing", "unreadable"]


@dataclass(frozen=True)
class Skipped:
    """A folder newer than the step to resume from, and why it was passed over.

    ``invalid`` ones are torn, foreign or late; the others are sound but another run's, or cannot be
    read now, and stay where they are.
    """

    name: str
    reason: str
    invalid: bool


@dataclass(frozen=True)
class Recovery:
    """The step to resume from, None when there is none, and what was found on the way to it.

    ``pointer_was``: it named this step (current), another one that is there (stale) or is not
    (dangling); there was none (missing) or it was garbage (unreadable).
    """

    record: StepRecord | None
    path: Path | None
    skipped: tuple[Skipped, ...]
    pointer_was: PointerState


def recover(
    steps_dir: Path,
    *,
    contract: Mapping[str, Any] | None = None,
    world: int | None = None,
    check_content: bool = True,
) -> Recovery:
    """Find the newest valid step, then tidy: quarantine, pointer, work of older attempts.

    For the owner of the run, after ``begin_attempt``. Arguments as in :func:`find_newest`. Nothing
    is moved before the decision. Raises StorageError when the folder cannot be read or tidied.
    """
    recovery = find_newest(steps_dir, contract=contract, world=world, check_content=check_content)
    with storage_errors(f"tidying {steps_dir}"):
        for skipped in recovery.skipped:
            if skipped.invalid and files.exists(steps_dir / skipped.name):
                set_aside(steps_dir, skipped.name, skipped.reason)
        if recovery.record is None:
            if _pointer_state(steps_dir, None) in ("dangling", "unreadable"):
                remove_pointer(steps_dir)
        elif recovery.pointer_was != "current":
            write_pointer(steps_dir, recovery.record)
        remove_abandoned_work(steps_dir)
    return recovery


def find_newest(
    steps_dir: Path,
    *,
    contract: Mapping[str, Any] | None = None,
    world: int | None = None,
    check_content: bool = True,
) -> Recovery:
    """Find the newest valid step and change nothing, for those who only look.

    Valid: name and record agree on the step, sizes match, contract and world are those asked for
    (None asks for nothing), digests match when ``check_content``, and no newer attempt had begun
    when it was published. Folders are read newest first until one is valid. When none is, but some
    could not be read, that error is raised: a run must not start anew because a disk is away.
    """
    refuse_link(steps_dir)
    fences = Fences(steps_dir)
    skipped = []
    unread = None
    for step in step_numbers(steps_dir):
        folder = steps_dir / step_name(step)
        try:
            record = _valid_record(folder, fences, contract, world, check_content)
        except StepError as error:
            skipped.append(Skipped(folder.name, str(error), isinstance(error, InvalidStep)))
            if unread is None and not isinstance(error, (InvalidStep, OtherContract)):
                unread = error
        else:
            return Recovery(record, folder, tuple(skipped), _pointer_state(steps_dir, record))
    if unread is not None:
        raise unread
    return Recovery(None, None, tuple(skipped), _pointer_state(steps_dir, None))


def list_steps(steps_dir: Path) -> tuple[StepRecord, ...]:
    """The valid steps, oldest first, judged without reading their content; changes nothing."""
    refuse_link(steps_dir)
    fences = Fences(steps_dir)
    found = []
    for step in reversed(step_numbers(steps_dir)):
        try:
            found.append(_valid_record(steps_dir / step_name(step), fences, None, None, False))
        except StepError:
            continue
    return tuple(found)


def _valid_record(
    folder: Path,
    fences: Fences,
    contract: Mapping[str, Any] | None,
    world: int | None,
    check_content: bool,
) -> StepRecord:
    record = read_record(folder)
    match(folder, record, contract, world)
    fences.check(folder, record)
    verify(folder, record, content=check_content)
    return record


def _pointer_state(steps_dir: Path, record: StepRecord | None) -> PointerState:
    try:
        pointer = read_pointer(steps_dir)
    except StepError:
        return "unreadable"
    if pointer is None:
        return "missing"
    if record and (pointer.step, pointer.state_sha256) == (record.step, record.state_sha256):
        return "current"
    return "stale" if files.exists(steps_dir / step_name(pointer.step)) else "dangling"
