"""Publishes what a program without hooks saves by itself as step directories, once it is whole."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Optional, cast

import torch

from dlbhpc.inside.context import AttemptContext
from dlbhpc.inside.progress import EventLog
from dlbhpc.steps import STATE, StepError, open_publication, retain

_Mark = tuple[int, int, int]
"""Inode, size and time of change: a file that was written since has another one."""


class SnapshotPublisher:
    """Looks at files that the program writes in place, and publishes each new state once.

    A file is copied first and then read: what is torn, or written while it is copied, is left until
    it changes again. Files are dictionaries as ``torch.save`` writes them, their step under
    ``step``, which counts the updates made.
    """

    def __init__(
        self,
        context: AttemptContext,
        events: EventLog,
        candidates: Callable[[], Iterable[Path]],
    ) -> None:
        """``candidates`` names the files to look at."""
        self._context = context
        self.events = events
        self._candidates = candidates
        self._seen: dict[Path, _Mark] = {}
        self.published = context.resumed_from or 0
        """The newest step that is safe."""

    def leave_out_present(self) -> None:
        """Take the files that are there now for known: another attempt wrote them."""
        for path in self._candidates():
            mark = _mark(path)
            if mark is not None:
                self._seen[path] = mark

    def look(self) -> None:
        """Publish what is new and whole.

        Raises OSError or StepError where that fails: Fenced where a newer attempt owns the run.
        """
        for path in self._candidates():
            mark = _mark(path)
            if mark is None or self._seen.get(path) == mark:
                continue
            with self._copy(path) as copy:
                if _mark(path) != mark:
                    continue  # It was being written; the next look sees another mark.
                step = snapshot_step(copy)
                if step is None:
                    self.events.write("snapshot_not_whole", file=path.name)
                elif step > self.published:
                    self._publish(copy, step, path.name)
            # Last: what could not be published is tried again.
            self._seen[path] = mark

    def _publish(self, copy: Path, step: int, name: str) -> None:
        context = self._context
        begun = time.monotonic()
        with open_publication(context.steps_dir, step=step, attempt=context.attempt) as publication:
            with copy.open("rb") as source, publication.create(STATE) as target:
                shutil.copyfileobj(source, cast(IO[bytes], target), 1 << 20)
            record = publication.commit(
                contract=dict(context.contract), world=context.world, extra={"reason": name}
            )
        self.published = step
        self.events.write(
            "saved",
            step=step,
            reason=name,
            seconds=time.monotonic() - begun,
            bytes=record.state_bytes,
        )
        try:
            retain(context.steps_dir, keep_last=context.keep_last, milestones=context.is_milestone)
        except (OSError, StepError) as error:  # What is too much on disk must not end a training.
            self.events.write("tidy_failed", step=step, error=str(error))

    @contextmanager
    def _copy(self, path: Path) -> Iterator[Path]:
        copy = self._context.output / "tmp" / f"snapshot.{os.getpid()}"
        copy.parent.mkdir(exist_ok=True)
        try:
            shutil.copyfile(path, copy)
            yield copy
        finally:
            copy.unlink(missing_ok=True)


def snapshot_step(path: Path) -> Optional[int]:
    """The step inside a snapshot; None for a file that is not whole."""
    try:
        # It holds the program's own configuration object; nothing but this run wrote it.
        content = torch.load(path, map_location="cpu", mmap=True, weights_only=False)
        step = content["step"]
    except Exception:  # A torn archive or pickle raises nearly anything.
        return None
    return step if type(step) is int and step > 0 else None


def _mark(path: Path) -> Optional[_Mark]:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns
