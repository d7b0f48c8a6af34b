"""Callbacks that the tests inject into a training."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import lightning.pytorch as pl


class SignalAt(pl.Callback):
    """Sends the own process a signal after an optimizer step, on rank 0 of the first node."""

    def __init__(self, step: int, name: str) -> None:
        self._step = step
        self._signal = signal.Signals[name]

    def on_train_batch_end(self, trainer: pl.Trainer, *args: Any) -> None:
        if trainer.is_global_zero and trainer.global_step == self._step:
            os.kill(os.getpid(), self._signal)


class RecordLoss(pl.Callback):
    """Appends [step, loss] of every optimizer step to a file, the loss to the last bit."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._last = -1

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._last = trainer.global_step

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: Any, *args: Any) -> None:
        if trainer.is_global_zero and trainer.global_step != self._last:
            self._last = trainer.global_step
            with self._path.open("a", encoding="utf-8") as file:
                print(json.dumps([self._last, float(pl_module.loss).hex()]), file=file)
