"""Completion: the selected checkpoint is published, and completed.json proves it."""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dlbhpc.errors import DlbhpcError
from dlbhpc.files import differing, file_digest, read_json, write_json
from dlbhpc.inputs.checkpoint import checkpoint_step
from dlbhpc.layout import OutputLayout
from dlbhpc.run.record import Run
from dlbhpc.steps import STATE, list_steps, step_name
from dlbhpc.steps.files import sync_folder

SCHEMA_VERSION = 1

_KINDS = {
    "identity": str,
    "identity_fields": dict,
    "checkpoint": str,
    "checkpoint_bytes": int,
    "checkpoint_sha256": str,
    "composed_config_sha256": str,
    "step": int,
}


@dataclass(frozen=True)
class Final:
    """The checkpoint that is the run's result, proven to hold ``step``.

    ``sha256`` is given where it is known already.
    """

    path: Path
    step: int
    sha256: str | None


def find_final(run: Run) -> Final | None:
    """The checkpoint of the run's selected step, once its last step is proven; else None.

    Where a recipe selects no step, the last one is the result. Both are proven by the step inside
    the checkpoint. Step directories carry the proof in their record, which names the digest too.
    """
    if (last := _proven(run, run.total_steps)) is None:
        return None
    selected = run.launch.recipe.selected_step
    return last if selected is None else _proven(run, selected)


def _proven(run: Run, step: int) -> Final | None:
    steps = run.launch.output.steps
    for record in list_steps(steps):
        if record.step == step and dict(record.contract) == dict(run.contract):
            state = steps / step_name(record.step) / STATE
            if checkpoint_step(state, run.launch.recipe.upstream.step_key) == step:
                return Final(state, record.step, record.state_sha256)
    return None


def publish(run: Run, final: Final, identity: str, config_sha256: str) -> Path:
    """Publish the selected checkpoint and write completed.json, in this order."""
    output = run.launch.output
    selected = run.launch.selected_checkpoint
    selected.parent.mkdir(parents=True, exist_ok=True)
    _publish_file(final.path, selected)
    write_json(
        output.completed,
        {
            "schema_version": SCHEMA_VERSION,
            "identity": identity,
            "identity_fields": dict(run.identity),
            "checkpoint": str(selected.relative_to(output.folder)),
            "checkpoint_source": str(final.path.relative_to(output.folder)),
            "checkpoint_bytes": selected.stat().st_size,
            "checkpoint_sha256": final.sha256 or file_digest(selected),
            "composed_config_sha256": config_sha256,
            "step": final.step,
            "time": time.time(),
        },
    )
    return selected


def read_completed(output: OutputLayout) -> dict[str, Any] | None:
    """The completion record; None when the run is not complete. A torn one is an error."""
    if not output.completed.exists():
        return None
    record = read_json(output.completed)
    wrong = [key for key, kind in _KINDS.items() if type(record.get(key)) is not kind]
    if wrong:
        raise DlbhpcError(
            f"{output.completed} is damaged ({', '.join(wrong)}): remove it and submit again, "
            "and the run completes from its step directories"
        )
    return record


def check_same_run(output: OutputLayout, record: dict[str, Any], identity: dict[str, Any]) -> None:
    """Refuse a completed run of another identity: it is never overwritten."""
    changed = differing(record["identity_fields"], identity)
    if changed:
        raise DlbhpcError(
            f"{output.folder} holds the completed run of another identity (it differs in "
            f"{', '.join(changed)}): choose another --output"
        )


def check_intact(output: OutputLayout, record: dict[str, Any], *, content: bool) -> None:
    """Refuse a completed run whose checkpoint or composed configuration is not what was recorded.

    With ``content`` the checkpoint is read and its digest compared, else only its size.
    """
    checkpoint = output.folder / record["checkpoint"]
    if not checkpoint.is_file():
        raise DlbhpcError(
            f"{output.completed} names {checkpoint}, which is missing: put it back, "
            "or remove completed.json and submit again"
        )
    size = checkpoint.stat().st_size
    if size != record["checkpoint_bytes"]:
        raise DlbhpcError(
            f"{checkpoint}: size differs, expected {record['checkpoint_bytes']} bytes, found {size}"
        )
    found = file_digest(output.composed_config) if output.composed_config.is_file() else "no file"
    if found != record["composed_config_sha256"]:
        raise DlbhpcError(
            f"{output.composed_config}: sha256 differs, expected "
            f"{record['composed_config_sha256']}, found {found}"
        )
    if content and (found := file_digest(checkpoint)) != record["checkpoint_sha256"]:
        raise DlbhpcError(
            f"{checkpoint}: sha256 differs, expected {record['checkpoint_sha256']}, found {found}"
        )


def _publish_file(source: Path, target: Path) -> None:
    """Put ``source`` under its published name, at once or not at all."""
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    try:
        # Step directories are never written again, so a second name costs nothing.
        os.link(source, temporary)
    except OSError:
        with source.open("rb") as read, temporary.open("wb") as write:
            shutil.copyfileobj(read, write, 1 << 20)
            write.flush()
            os.fsync(write.fileno())
    temporary.replace(target)
    sync_folder(target.parent)
