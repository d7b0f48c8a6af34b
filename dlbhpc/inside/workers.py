"""Keeps data loader workers alive when a stop signal reaches every process of a job step."""

from __future__ import annotations

import functools
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable
from multiprocessing import resource_tracker
from typing import Any

from torch.utils.data import dataloader

from dlbhpc.inside.latch import STOP_SIGNALS


def protect_workers() -> None:
    """Let the workers of all loaders that start from now on outlive SIGTERM and SIGUSR2.

    A worker dies of a stop signal, and its death raises in the main process wherever that is,
    also in the middle of a save. So workers start with the signals blocked, and a thread of
    theirs takes them: only a SIGTERM from the process that owns the worker ends it, as before.
    """
    iterators: list[Any] = [dataloader._MultiProcessingDataLoaderIter]
    # torchdata's loader, which sdtt and di4c use, starts its workers by code of its own.
    stateful = sys.modules.get("torchdata.stateful_dataloader.stateful_dataloader")
    if stateful is not None:
        iterators.append(stateful._StatefulMultiProcessingDataLoaderIter)
    for iterator in iterators:
        if not hasattr(iterator.__init__, "__wrapped__"):
            iterator.__init__ = _starting_protected(iterator.__init__)


def _starting_protected(start: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(start)
    def start_protected(self: Any, loader: Any, *more: Any) -> None:
        chosen = loader.worker_init_fn
        loader.worker_init_fn = _ProtectedWorker(chosen)
        # Children inherit the mask: no moment is left between their birth and their first line.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        try:
            context = loader.multiprocessing_context or multiprocessing
            if context.get_start_method() != "fork":
                # These need the tracker, whose start lifts the mask: it has to be started before.
                resource_tracker.ensure_running()
                signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
            start(self, loader, *more)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            loader.worker_init_fn = chosen

    return start_protected


class _ProtectedWorker:
    """A loader's ``worker_init_fn``: ours, then the one that the loader had."""

    def __init__(self, chosen: Callable[[int], None] | None) -> None:
        self._chosen = chosen

    def __call__(self, worker: int) -> None:
        # Not every start method hands the mask down.
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        threading.Thread(target=_take_signals, name="stop signals", daemon=True).start()
        if self._chosen is not None:
            self._chosen(worker)


def _take_signals() -> None:
    parent = multiprocessing.parent_process()
    while True:
        info = signal.sigwaitinfo(STOP_SIGNALS)
        owners = {os.getppid(), parent.pid if parent is not None else None}
        if info.si_signo == signal.SIGTERM and info.si_pid in owners:
            os._exit(0)
