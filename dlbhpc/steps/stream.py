"""A file that is digested while it is written, so that nothing is read back."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from dlbhpc.steps import files

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_BUFFER = 1 << 20
"""Bytes gathered from small writes; what is at least as large goes straight through."""


class DigestingFile(io.RawIOBase):
    """A write-only binary file for ``torch.save`` and its like.

    It has no ``fileno``, so that nobody can write around the digest, and no ``seek``. ``size`` and
    ``sha256`` hold once it is closed. ``failure`` is the first ``OSError``, kept since writers
    in C++ may report it as something else or not at all; after it, nothing more is written.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._descriptor = -1  # until there is one: a failed create is finalized too
        self.path = path
        self.size = 0
        self.sha256: str | None = None
        self.failure: OSError | None = None
        self._digest = hashlib.sha256()
        self._pending = bytearray()
        self._descriptor = files.create(path)

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.size

    def write(self, data: ReadableBuffer, /) -> int:
        """Write all of ``data``; unlike a raw file, never a part of it."""
        if self.closed:
            raise ValueError(f"{self.path}: write to a closed file")
        view = memoryview(data)
        if view.nbytes >= _BUFFER:
            self._drain()
            self._put(view.cast("B"))
        else:
            self._pending += view
            if len(self._pending) >= _BUFFER:
                self._drain()
        self.size += view.nbytes
        return view.nbytes

    def close(self) -> None:
        """Write what is pending, sync, and check the size on disk. Closing twice is harmless."""
        if self.closed:
            return
        super().close()
        try:
            self._drain()
        except BaseException:
            self._release()
            raise
        descriptor, self._descriptor = self._descriptor, -1
        if self.failure is not None:
            files.abandon(descriptor)
            return
        try:
            files.finish(descriptor, self.size, self.path)
        except OSError as error:
            self.failure = error
            raise
        self.sha256 = self._digest.hexdigest()

    def abandon(self) -> None:
        """Close without syncing what does not count any more."""
        if not self.closed:
            super().close()
            self._release()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()

    def __del__(self) -> None:
        self.abandon()

    def _drain(self) -> None:
        pending, self._pending = self._pending, bytearray()
        self._put(memoryview(pending))

    def _put(self, view: memoryview) -> None:
        if self.failure is not None or not view:
            return
        self._digest.update(view)
        try:
            files.write_all(self._descriptor, view)
        except OSError as error:
            self.failure = error
            raise

    def _release(self) -> None:
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            files.abandon(descriptor)
