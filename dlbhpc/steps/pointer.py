"""The pointer latest.json: a quick answer for readers, never an authority for recovery."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dlbhpc.steps import files
from dlbhpc.steps.errors import InvalidStep
from dlbhpc.steps.fence import newest_attempt
from dlbhpc.steps.names import LAST_STEP, POINTER, step_name, work_name
from dlbhpc.steps.quarantine import set_aside
from dlbhpc.steps.record import SCHEMA_VERSION, StepRecord, encode, read_document


@dataclass(frozen=True)
class Pointer:
    """The step that was published last, and the digest of its state."""

    step: int
    state_sha256: str


def read_pointer(steps_dir: Path) -> Pointer | None:
    """What the pointer says, unchecked: the step it names may be gone. None without a pointer.

    Raises InvalidStep when it is garbage or a link, StorageError when it cannot be read.
    """
    path = steps_dir / POINTER
    if not files.exists(path):
        return None
    document = read_document(path)
    step, sha256 = document.get("step"), document.get("state_sha256")
    if type(step) is not int or not 1 <= step <= LAST_STEP or not isinstance(sha256, str):
        raise InvalidStep(f"{path}: expected a step and its state_sha256, found neither or one")
    return Pointer(step, sha256)


def write_pointer(steps_dir: Path, record: StepRecord) -> None:
    """Let the pointer name ``record``'s step, in one act."""
    path = steps_dir / POINTER
    if files.is_folder(path):  # nothing of ours, and no file can replace a folder
        set_aside(steps_dir, POINTER, "a folder in the place of the pointer")
    document = {
        "schema_version": SCHEMA_VERSION,
        "step": record.step,
        "folder": step_name(record.step),
        "state_sha256": record.state_sha256,
    }
    temporary = steps_dir / work_name(newest_attempt(steps_dir), "latest")
    files.replace_file(path, encode(document), temporary)


def remove_pointer(steps_dir: Path) -> None:
    """Take away a pointer that has no step to name; its text goes to quarantine."""
    set_aside(steps_dir, POINTER, "no valid step for a pointer to name")
