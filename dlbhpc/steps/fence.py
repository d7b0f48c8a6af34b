"""Attempts: which one owns the run, and which steps were published too late to count.

A node that the scheduler gave up on may still run an older attempt. A publisher looks at the fence
before it renames, but looking and renaming are two acts. So every attempt, once its fence stands,
writes down the steps it sees: what an older attempt publishes after that is not in the list, and
recovery rejects it.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Optional

from dlbhpc.steps import files
from dlbhpc.steps.errors import Fenced, InvalidStep, StepError, StorageError, storage_errors
from dlbhpc.steps.names import (
    FENCE,
    attempt_of_fence,
    fence_name,
    owner,
    step_name,
    step_of,
    work_name,
)
from dlbhpc.steps.record import SCHEMA_VERSION, StepRecord, encode, read_document, read_record

Seen = frozenset[tuple[int, Optional[str]]]
"""Steps and the digests of their states; None where a record could not be read at the time."""


def begin_attempt(steps_dir: Path) -> int:
    """Allocate the next attempt's number, shut older attempts out, and return the number.

    Makes the folders where missing. Two callers at once get two numbers; the lower one is shut out.
    Raises StorageError when the folder cannot be written.
    """
    refuse_link(steps_dir)
    with storage_errors(f"beginning an attempt in {steps_dir}"):
        files.ensure_folder(steps_dir / FENCE)
        claim = _claim(steps_dir)
        attempt: int = claim["attempt"]
        # Only what is seen once the claim stands is certain to have been published before it.
        seen = [[step, sha256] for step, sha256 in _published(steps_dir)]
        files.replace_file(
            steps_dir / FENCE / fence_name(attempt),
            encode({**claim, "steps": seen}),
            steps_dir / work_name(attempt, "fence"),
        )
        files.sync_folder(steps_dir)
    return attempt


def newest_attempt(steps_dir: Path) -> int:
    """The number of the attempt that owns the run, 0 before the first."""
    with storage_errors(f"reading {steps_dir / FENCE}"):
        return max(_attempts(steps_dir), default=0)


def check_fence(steps_dir: Path, attempt: int) -> None:
    """Raise Fenced when an attempt newer than ``attempt`` has begun."""
    newest = newest_attempt(steps_dir)
    if newest > attempt:
        raise Fenced(
            f"{steps_dir}: attempt {newest} owns this run; attempt {attempt} must not publish: "
            "let it end, its successor continues the run"
        )


class Fences:
    """The lists that attempts wrote down when they began, each file read at most once."""

    def __init__(self, steps_dir: Path) -> None:
        self._folder = steps_dir / FENCE
        with storage_errors(f"reading {self._folder}"):
            self._attempts = sorted(_attempts(steps_dir))
        self._seen: dict[int, Seen | None] = {}

    def check(self, folder: Path, record: StepRecord) -> None:
        """Raise InvalidStep when ``record`` was published after a newer attempt had begun.

        The first newer attempt that lived to write its list decides. A record without an attempt
        was not written by a publisher of ours, so no attempt can be late with it.
        """
        if record.attempt is None:
            return
        for newer in self._attempts:
            seen = self._list_of(newer) if newer > record.attempt else None
            if seen is None:
                continue
            if not seen & {(record.step, record.state_sha256), (record.step, None)}:
                raise InvalidStep(
                    f"{folder}: published by attempt {record.attempt} after attempt {newer} had "
                    "begun: expected nothing of the older attempt by then"
                )
            return

    def _list_of(self, attempt: int) -> Seen | None:
        if attempt not in self._seen:
            self._seen[attempt] = _listed(self._folder / fence_name(attempt))
        return self._seen[attempt]


def step_numbers(steps_dir: Path) -> list[int]:
    """The steps that folders are named after, newest first."""
    with storage_errors(f"reading {steps_dir}"):
        steps = (step_of(name) for name in files.names(steps_dir))
    return sorted((step for step in steps if step is not None), reverse=True)


def refuse_link(steps_dir: Path) -> None:
    """Raise StepError when the steps folder is a link: renames must stay on one file system."""
    if steps_dir.is_symlink():
        raise StepError(f"{steps_dir}: the steps folder is a symbolic link: give the real folder")


def utc_now() -> str:
    """The time as ISO 8601 in UTC."""
    return datetime.now(timezone.utc).isoformat()


def _claim(steps_dir: Path) -> dict[str, Any]:
    # Beyond the records too, so that a steps folder copied without its fence stays in order.
    attempt = max([0, *_attempts(steps_dir), *_publishers(steps_dir)]) + 1
    while True:
        path = steps_dir / FENCE / fence_name(attempt)
        document = {
            "schema_version": SCHEMA_VERSION,
            "attempt": attempt,
            "owner": owner(),
            "time": utc_now(),
        }
        data = encode(document)
        try:
            files.write_file(path, data)
        except FileExistsError:
            attempt += 1
            continue
        files.sync_folder(path.parent)
        # Read again: some shared file systems let two create one file.
        if files.read_regular(path, len(data)) == data:
            return document
        attempt += 1


def _attempts(steps_dir: Path) -> list[int]:
    numbers = (attempt_of_fence(name) for name in files.names(steps_dir / FENCE))
    return [number for number in numbers if number is not None]


def _publishers(steps_dir: Path) -> Iterator[int]:
    for step in step_numbers(steps_dir):
        try:
            yield read_record(steps_dir / step_name(step)).attempt or 0
        except StepError:
            continue


def _published(steps_dir: Path) -> Iterator[tuple[int, str | None]]:
    for step in step_numbers(steps_dir):
        try:
            yield step, read_record(steps_dir / step_name(step)).state_sha256
        except StorageError:
            yield step, None  # it is there; a passing fault must not make it late
        except StepError:
            continue


def _listed(path: Path) -> Seen | None:
    """The steps in one fence file; None when its attempt died before it wrote them down."""
    try:
        steps = read_document(path).get("steps")
    except InvalidStep:
        return None
    if not isinstance(steps, list):
        return None
    return frozenset(
        (entry[0], entry[1])
        for entry in steps
        if isinstance(entry, list)
        and len(entry) == 2
        and isinstance(entry[0], int)
        and (entry[1] is None or isinstance(entry[1], str))
    )
