"""Publishing a step: written beside its target, checked, then renamed into place in one act.

The order makes every crash harmless: files synced and closed, COMPLETE.json synced, folder synced,
fence looked at, folder renamed, parent synced, pointer replaced. Before the rename the steps
published earlier are untouched; after it the new one is found with or without the pointer.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dlbhpc.steps import files
from dlbhpc.steps.errors import (
    InvalidStep,
    StepError,
    storage_error,
    storage_errors,
)
from dlbhpc.steps.fence import Fences, check_fence, refuse_link, utc_now
from dlbhpc.steps.names import COMPLETE, EXPORT, LAST_STEP, STATE, step_name, work_name
from dlbhpc.steps.pointer import write_pointer
from dlbhpc.steps.quarantine import set_aside
from dlbhpc.steps.record import StepRecord, match, read_record, verify
from dlbhpc.steps.stream import DigestingFile


@contextmanager
def open_publication(steps_dir: Path, *, step: int, attempt: int) -> Iterator[Publication]:
    """Open a temporary folder to write one step into; ``commit`` publishes it.

    Leaving the block without ``commit`` deletes what was written. Raises Fenced as soon as a newer
    attempt owns the run, StorageError when the file system fails, also where the code in the block
    turned that failure into an exception of its own.
    """
    if type(step) is not int or not 1 <= step <= LAST_STEP:
        raise StepError(f"{steps_dir}: a step must be from 1 to {LAST_STEP}, not {step!r}")
    if type(attempt) is not int or attempt < 1:
        raise StepError(f"{steps_dir}: an attempt must be 1 or more, not {attempt!r}")
    refuse_link(steps_dir)
    check_fence(steps_dir, attempt)
    publication = Publication(steps_dir, step, attempt)
    try:
        yield publication
    except Exception as error:
        failure = publication.failure
        if failure is None or isinstance(error, StepError):
            raise
        # The successor deletes our folder, which looks like a fault of the file system from here.
        check_fence(steps_dir, attempt)
        raise storage_error(f"writing step {step} in {steps_dir}", failure) from failure
    finally:
        publication.discard()


class Publication:
    """One step on its way; made by :func:`open_publication`."""

    def __init__(self, steps_dir: Path, step: int, attempt: int) -> None:
        self._steps_dir = steps_dir
        self._step = step
        self._attempt = attempt
        self._files: dict[str, DigestingFile] = {}
        self._target = steps_dir / step_name(step)
        self._open = True
        self._work = steps_dir / work_name(attempt, step_name(step))
        with storage_errors(f"making a folder in {steps_dir}"):
            try:
                files.make_folder(self._work)
                if files.device(self._work) != files.device(steps_dir):
                    raise OSError(errno.EXDEV, "another file system", str(self._work))
            except OSError:
                files.remove(self._work)
                raise

    @property
    def failure(self) -> OSError | None:
        """The first error of the file system met while writing, if any."""
        return next((file.failure for file in self._files.values() if file.failure), None)

    def create(self, name: str) -> DigestingFile:
        """A new file of the step for a ``with`` block: the training state or the export."""
        if name not in (STATE, EXPORT):
            raise StepError(f"{self._target}: a step holds {STATE} and {EXPORT}, not {name!r}")
        if name in self._files:
            raise StepError(f"{self._target}: {name} is written once")
        with self._storage_errors(f"creating {name}"):
            self._files[name] = DigestingFile(self._work / name)
        return self._files[name]

    def commit(
        self,
        *,
        contract: Mapping[str, Any],
        world: int,
        extra: Mapping[str, Any] | None = None,
    ) -> StepRecord:
        """Publish the step; return the record that now stands under its name.

        That is an existing one when this step of the same contract was published already and is
        still sound. A folder that is not sound makes room by going into quarantine.
        """
        if not self._open:
            raise StepError(f"{self._target}: committed already")
        record = self._record(contract, world, extra or {})
        data = record.to_bytes()
        with self._storage_errors("publishing"):
            files.write_file(self._work / COMPLETE, data)
            files.sync_folder(self._work)
            check_fence(self._steps_dir, self._attempt)
            published = self._place(record, data)
            files.sync_folder(self._steps_dir)
            # Overtaken since the first look: recovery decides on the step, the pointer is not ours.
            check_fence(self._steps_dir, self._attempt)
            write_pointer(self._steps_dir, published)
        return published

    def discard(self) -> None:
        """Delete what was written and not published."""
        for file in self._files.values():
            file.abandon()
        if self._open:
            self._open = False
            files.remove(self._work)

    @contextmanager
    def _storage_errors(self, doing: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            check_fence(self._steps_dir, self._attempt)
            raise storage_error(f"{doing} step {self._step} in {self._steps_dir}", error) from error

    def _record(
        self, contract: Mapping[str, Any], world: int, extra: Mapping[str, Any]
    ) -> StepRecord:
        state = self._written(STATE)
        if state is None:
            raise StepError(f"{self._target}: nothing was written to {STATE}: a step needs one")
        export = self._written(EXPORT)
        return StepRecord(
            step=self._step,
            contract=dict(contract),
            world=world,
            state_bytes=state[0],
            state_sha256=state[1],
            export_bytes=export[0] if export else None,
            export_sha256=export[1] if export else None,
            attempt=self._attempt,
            time=utc_now(),
            extra=dict(extra),
        )

    def _written(self, name: str) -> tuple[int, str] | None:
        """Size and digest of one file, None when it was not created."""
        file = self._files.get(name)
        if file is None:
            return None
        if file.failure is not None:
            raise storage_error(f"writing {file.path}", file.failure) from file.failure
        if file.sha256 is None:
            raise StepError(f"{file.path}: close the file before the commit")
        if file.size == 0:
            raise StepError(f"{file.path}: nothing was written to it")
        return file.size, file.sha256

    def _place(self, record: StepRecord, data: bytes) -> StepRecord:
        """Rename the folder to its final name, or return the sound record that has it."""
        existing = self._existing(record)
        if existing is not None:
            return existing
        try:
            files.rename(self._work, self._target, lambda: self._is_ours(record, data))
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                raise
            # Another publisher took the name since we looked.
            existing = self._existing(record)
            if existing is None:
                raise
            return existing
        self._open = False
        return record

    def _is_ours(self, record: StepRecord, data: bytes) -> bool:
        if files.read_regular(self._target / COMPLETE, len(data)) != data:
            return False
        try:
            verify(self._target, record)
        except InvalidStep:
            return False
        return True

    def _existing(self, record: StepRecord) -> StepRecord | None:
        """The record under the final name if it can stand; else make room there."""
        if not files.exists(self._target):
            return None
        try:
            found = read_record(self._target)
            match(self._target, found, record.contract, record.world)
            Fences(self._steps_dir).check(self._target, found)
            # Ours was checked when it was written; what an older attempt left may have decayed
            # since, and recovery may have passed over it for that.
            verify(self._target, found, content=found.attempt != self._attempt)
            return found
        except StepError as error:
            check_fence(self._steps_dir, self._attempt)  # what a successor has is not ours to move
            set_aside(self._steps_dir, self._target.name, str(error))
            return None
