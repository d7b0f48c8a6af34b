"""Saves a step for all ranks together, and decides what a failed save means."""

from __future__ import annotations

import time

import lightning.pytorch as pl

from dlbhpc.exit_status import FENCED, STORAGE
from dlbhpc.inside.agreement import Agreement
from dlbhpc.inside.context import AttemptContext
from dlbhpc.inside.progress import EventLog
from dlbhpc.inside.saving import Outcome, StepDirectoryIO, averaged_weights, tidy

FAILURES_BEFORE_LEAVING = 3
"""Saves in a row that may fail before training on would risk more than it gains."""


class Saver:
    """Publishes steps on rank 0 while the others wait; every rank learns how it went."""

    def __init__(self, context: AttemptContext, agreement: Agreement, events: EventLog) -> None:
        """To be used by all ranks alike."""
        self._context = context
        self._agreement = agreement
        self._events = events
        self._failures = 0
        self._last_try = time.monotonic()
        self.published = context.resumed_from or 0
        """The newest step that is safe."""

    def start_clock(self) -> None:
        """Count the time to the next save from now on."""
        self._last_try = time.monotonic()

    def is_due(self) -> bool:
        """Whether a crash now would lose more than the attempt allows, by this rank's clock."""
        return time.monotonic() - self._last_try >= self._context.save_every_seconds

    def save(self, trainer: pl.Trainer, module: pl.LightningModule, reason: str) -> None:
        """Publish the trainer's current step.

        A save that fails is told; the training goes on unless it was the last one or the third in
        a row: then the process leaves with STORAGE. It leaves with FENCED where a newer attempt
        owns the run, and raises RuntimeError where the checkpoint itself cannot be written.
        """
        begun = time.monotonic()
        step = trainer.global_step
        writer = StepDirectoryIO(
            self._context,
            step,
            (lambda: averaged_weights(module)) if self._context.export_bf16 else None,
            {"reason": reason},
        )
        usual = trainer.strategy.checkpoint_io
        trainer.strategy.checkpoint_io = writer
        try:
            trainer.save_checkpoint(self._context.steps_dir / "unused", weights_only=False)
        finally:
            trainer.strategy.checkpoint_io = usual
        outcome = Outcome(self._agreement.maximum(writer.outcome)[0])
        self._last_try = time.monotonic()
        if outcome is not Outcome.SAVED:
            self._fail(step, reason, outcome, writer.error)
            return
        self.published = step
        self._failures = 0
        if writer.record is not None:
            self._events.write(
                "saved",
                step=step,
                reason=reason,
                seconds=self._last_try - begun,
                bytes=writer.record.state_bytes,
            )
            if reason != "stop":  # The time to leave is short, and the next attempt tidies too.
                self._tidy(step)

    def _fail(self, step: int, reason: str, outcome: Outcome, error: Exception | None) -> None:
        self._events.write(
            "save_failed", step=step, reason=reason, outcome=outcome.name, error=str(error)
        )
        if outcome is Outcome.FENCED:
            self._events.say(f"a newer attempt owns this run: {error}")
            self._events.leave(FENCED)
        if outcome is Outcome.FAILED:
            why = error if error is not None else "see its log"
            raise RuntimeError(f"rank 0 could not save step {step}: {why}") from error
        self._failures += 1
        self._events.say(f"step {step} could not be saved ({self._failures} in a row): {error}")
        if reason in ("stop", "final") or self._failures >= FAILURES_BEFORE_LEAVING:
            self._events.leave(STORAGE)

    def _tidy(self, step: int) -> None:
        try:
            tidy(self._context)
        except Exception as error:  # What is too much on disk must not end a training.
            self._events.write("tidy_failed", step=step, error=str(error))
