"""Notes that the process was asked to stop, by a signal or by a file, and does nothing else."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR2)


class StopLatch:
    """Remembers the first request to stop; a training loop asks it between steps.

    The handler only sets a flag: the signal may arrive anywhere, twice, and in the middle of
    a save. The batch host asks through a file, since a signal to every process of a job step may
    take down what the process needs to save (the helper that mounts an image).
    """

    def __init__(
        self,
        stop_file: Path | None = None,
        interval: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Without a ``stop_file`` only signals count; ``interval`` seconds lie between looks."""
        self._stop_file = stop_file
        self._interval = interval
        self._clock = clock
        self._next_look = float("-inf")
        self._request: str | None = None
        self._signals = 0
        self._previous: dict[signal.Signals, Any] = {}
        self._handler: Callable[[int, FrameType | None], None] = self._note

    def install(self) -> None:
        """Own SIGTERM and SIGUSR2, whoever had them before. Only from the main thread."""
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("signals can be handled in the main thread only: train there")
        for number in STOP_SIGNALS:
            current = signal.getsignal(number)
            if current is not self._handler:
                self._previous.setdefault(number, current)
                signal.signal(number, self._handler)

    def is_installed(self) -> bool:
        """Whether both signals still come here."""
        return all(signal.getsignal(number) is self._handler for number in STOP_SIGNALS)

    def restore(self) -> None:
        """Give the signals back to whoever had them before :meth:`install`."""
        for number, previous in self._previous.items():
            if signal.getsignal(number) is self._handler:
                signal.signal(number, signal.SIG_DFL if previous is None else previous)
        self._previous.clear()

    @property
    def signals(self) -> int:
        """How many signals arrived; those after the first changed nothing."""
        return self._signals

    def requested(self) -> str | None:
        """What asked first: "SIGTERM", "SIGUSR2" or "file"; None while nobody did."""
        if self._request is None and self._stop_file is not None:
            now = self._clock()
            if now >= self._next_look:
                self._next_look = now + self._interval
                if _is_listed(self._stop_file):
                    self._request = "file"
        return self._request

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._signals += 1
        if self._request is None:
            self._request = signal.Signals(number).name


def _is_listed(path: Path) -> bool:
    """Whether the file is there, read from its folder.

    A network file system may remember for a minute that a name was not there; reading the
    folder asks its server.
    """
    try:
        return any(entry.name == path.name for entry in path.parent.iterdir())
    except OSError:
        return False
