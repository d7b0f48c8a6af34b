"""Moving aside what cannot be trusted: never deleted, never silently."""

from __future__ import annotations

from pathlib import Path

from dlbhpc.steps import files
from dlbhpc.steps.fence import newest_attempt, utc_now
from dlbhpc.steps.names import QUARANTINE, aside_name, attempt_of_work, work_name
from dlbhpc.steps.record import SCHEMA_VERSION, encode


def set_aside(steps_dir: Path, name: str, reason: str) -> Path:
    """Move one entry of the steps folder into quarantine; return where it is now.

    NAME.reason.json beside it says why. It is written first, so that a crash can leave a reason
    without its folder but no folder without its reason.
    """
    quarantine = steps_dir / QUARANTINE
    files.ensure_folder(quarantine)
    moved = quarantine / aside_name(name)
    document = {
        "schema_version": SCHEMA_VERSION,
        "name": name,
        "reason": reason,
        "time": utc_now(),
    }
    files.replace_file(
        quarantine / f"{moved.name}.reason.json",
        encode(document),
        steps_dir / work_name(newest_attempt(steps_dir), "reason"),
    )
    files.move(steps_dir / name, moved)
    return moved


def remove_abandoned_work(steps_dir: Path) -> None:
    """Delete the temporary names of attempts that a newer one has shut out; no other names."""
    newest = newest_attempt(steps_dir)
    for name in files.names(steps_dir):
        owner = attempt_of_work(name)
        if owner is not None and owner < newest:
            files.remove(steps_dir / name)
