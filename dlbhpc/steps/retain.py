"""Deleting the steps that nobody needs any more."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Container
from pathlib import Path
from typing import Union

from dlbhpc.steps import files
from dlbhpc.steps.errors import StepError, storage_errors
from dlbhpc.steps.names import HOLDS, LAST_STEP, NOBODY, step_name, work_name
from dlbhpc.steps.pointer import read_pointer
from dlbhpc.steps.record import StepRecord, read_document
from dlbhpc.steps.recover import list_steps

_LOG = logging.getLogger(__name__)

Milestones = Union[Callable[[int], bool], Container[int]]


def retain(
    steps_dir: Path, keep_last: int = 2, milestones: Milestones = frozenset()
) -> tuple[int, ...]:
    """Delete old steps; return those deleted, oldest first.

    Kept are the newest ``keep_last`` of each contract, the milestones, the steps that a file in
    holds/ names, and the pointer's. Only valid steps are counted or deleted: what is torn, foreign
    or late is recovery's to judge. While a hold or the pointer cannot be understood, nothing is
    deleted. Raises StorageError when a folder cannot be taken out of its place.
    """
    if keep_last < 1:
        raise StepError(f"{steps_dir}: keep_last must be 1 or more, not {keep_last}")
    try:
        held = _held(steps_dir)
    except StepError as error:
        _LOG.warning("No step is deleted: %s", error)
        return ()
    is_milestone = milestones if callable(milestones) else milestones.__contains__
    removed = []
    for step in _superseded(list_steps(steps_dir), keep_last):
        if step not in held and not is_milestone(step):
            _delete(steps_dir, step)
            removed.append(step)
    return tuple(removed)


def _superseded(records: tuple[StepRecord, ...], keep_last: int) -> list[int]:
    """Steps, oldest first, that have ``keep_last`` newer ones of their own contract and world."""
    newer: Counter[str] = Counter()
    steps = []
    for record in reversed(records):
        run = json.dumps([record.contract, record.world], sort_keys=True)
        if newer[run] >= keep_last:
            steps.append(record.step)
        newer[run] += 1
    return steps[::-1]


def _held(steps_dir: Path) -> set[int]:
    pointer = read_pointer(steps_dir)
    held = {pointer.step} if pointer else set()
    with storage_errors(f"reading {steps_dir / HOLDS}"):
        names = [name for name in files.names(steps_dir / HOLDS) if name.endswith(".json")]
    for name in names:
        step: object | None = read_document(steps_dir / HOLDS / name).get("step")
        if type(step) is not int or not 1 <= step <= LAST_STEP:
            raise StepError(f"{steps_dir / HOLDS / name}: expected a step, found {step!r:.80}")
        held.add(step)
    return held


def _delete(steps_dir: Path, step: int) -> None:
    # Gone from its name in one act; should deleting stop half-way, no torn step is left behind.
    doomed = steps_dir / work_name(NOBODY, step_name(step))
    with storage_errors(f"removing {steps_dir / step_name(step)}"):
        files.move(steps_dir / step_name(step), doomed)
    files.remove(doomed)
