"""The callback that publishes step directories and leaves on request, for every upstream.

Injected as one override, ``+callbacks.dlbhpc_steps._target_=`` and this class's full name.
"""

from __future__ import annotations

import io
import time
from typing import Any, NoReturn

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback

from dlbhpc.exit_status import FENCED, REQUEUE, STORAGE
from dlbhpc.inside import loops
from dlbhpc.inside.agreement import Agreement
from dlbhpc.inside.context import AttemptContext
from dlbhpc.inside.keepers import Keeper, RandomState
from dlbhpc.inside.latch import StopLatch
from dlbhpc.inside.progress import EventLog, ProgressFile
from dlbhpc.inside.saving import Outcome, StepDirectoryIO, averaged_weights, tidy
from dlbhpc.inside.workers import protect_workers

FAILURES_BEFORE_LEAVING = 3
"""Saves in a row that may fail before training on would risk more than it gains."""

STATE_KEY = "dlbhpc"
"""Where a checkpoint holds what the keepers saved."""

_REQUESTS = ("", "file", "SIGUSR2", "SIGTERM")
"""Requests by the number that the ranks exchange."""

_LOSS_NAMES = ("train/loss", "trainer/loss")
"""Under which the reference upstream and the pinned ones log the loss of a step."""


class StepCallback(Callback):
    """Saves at milestones, after a time, before a validation, at the end, and when told to stop.

    The decision is made by all ranks together after every optimizer step. Having been told to
    stop, the process leaves with REQUEUE; with STORAGE where it cannot save, with FENCED where
    a newer attempt owns the run. ``keepers`` hold what the upstream's checkpoint leaves out; a
    route may add its own.
    """

    def __init__(self, context: AttemptContext | None = None) -> None:
        """Without a ``context`` the environment names the attempt's file."""
        self.context = context or AttemptContext.from_environment()
        self._random = RandomState()
        self.keepers: list[Keeper] = [self._random]
        self._events = EventLog(self.context.events_file, self.context.attempt)
        self._progress = ProgressFile(
            self.context.progress_file, self.context.attempt, self.context.total_steps
        )
        self._latch: StopLatch | None = None
        self._agreement: Agreement | None = None
        self._is_writer = False
        self._step = 0
        self._published = self.context.resumed_from or 0
        self._last_save = time.monotonic()
        self._failures = 0
        self._checked_signals = False
        self._loaded: dict[str, Any] | None = None
        self._random_before_validation: dict[str, Any] | None = None
        self._validated = 0
        self._common_validation_batches = 0

    # Start and end

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Refuse a wrong world, take the signals, open the ranks' channel."""
        self._refuse_other_world(trainer)
        self._is_writer = trainer.is_global_zero
        if self._agreement is None:
            self._agreement = Agreement(trainer.world_size, trainer.global_rank)
        if self._latch is None:
            self._latch = StopLatch(self.context.stop_file if self._is_writer else None)
        loops.disown_signals(trainer)
        self._latch.install()
        protect_workers()

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Leave at once where a stop is requested already."""
        self._event("start", resumed_from=self.context.resumed_from, world=trainer.world_size)
        self._leave_if_asked()

    def on_sanity_check_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Take the signals back from whoever took them since."""
        self._own_signals()

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Check what was resumed, and have the data iterator made anew."""
        self._own_signals()
        self._step = trainer.global_step
        if self._step != (self.context.resumed_from or 0):
            raise RuntimeError(
                f"training starts at step {self._step}, but the attempt was to resume from "
                f"{self.context.resumed_from}: the upstream did not load the checkpoint that was "
                "placed for it. Check its checkpointing.resume_from_ckpt and resume_ckpt_path"
            )
        if self._is_writer:
            # Imports what a save needs now: the image may be gone when the signal comes.
            torch.save({"tensor": torch.zeros(1)}, io.BytesIO())
            if self.context.export_bf16:
                averaged_weights(pl_module)
        loops.keep_data_position(trainer, self._begin_batches)
        self._last_save = time.monotonic()
        self._progress.start(self._step)
        self._leave_if_asked()

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Tell that the last step is done."""
        if trainer.global_step >= self.context.total_steps:
            self._event("finished", step=trainer.global_step)

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Give the signals back: nothing asks the latch from here on."""
        if self._latch is not None:
            self._latch.restore()

    def _refuse_other_world(self, trainer: pl.Trainer) -> None:
        context = self.context
        if trainer.world_size != context.world:
            raise RuntimeError(
                f"the trainer has {trainer.world_size} processes, but the run is laid out for "
                f"{context.nodes} nodes x {context.gpus_per_node} devices = {context.world}: it "
                "would train with another batch. Under Slurm the world is the number of tasks of "
                "srun: start one task per device (--ntasks-per-node), with trainer.devices and "
                "trainer.num_nodes to match"
            )

    def _begin_batches(self, consumed: int, position_kept: bool) -> None:
        """The first data iterator was made: from here on the restored state is not disturbed."""
        if consumed and not position_kept:
            self._event("position_not_kept", consumed=consumed)
        if self._loaded is not None:
            for keeper in self.keepers:
                if keeper.name in self._loaded:
                    keeper.restore(self._loaded[keeper.name])
            self._loaded = None
        # Some versions of Lightning first repeat a validation that was due at the saved step.
        self._random_before_validation = self._random.save()

    # Training steps

    def on_train_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """After an optimizer step: agree, save, leave, or tell the progress."""
        validates = loops.validation_follows(trainer)
        step = trainer.global_step
        if step != self._step:
            self._step = step
            self._after_step(trainer, pl_module, outputs, validates)
        self._random_before_validation = self._random.save() if validates else None

    def _after_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, validates: bool
    ) -> None:
        if not self._checked_signals:
            self._checked_signals = True
            self._own_signals()
        step = self._step
        stop, is_late = self._agree(self._request(), self._is_late())
        reason = self._reason_to_save(step, stop, is_late, validates)
        if reason is not None:
            self._save(trainer, pl_module, reason)
        if self._is_writer and self._progress.is_due(step):
            self._progress.write(step, trainer.current_epoch, _loss(trainer, outputs))
        if stop:
            self._leave(stop)

    def _reason_to_save(self, step: int, stop: int, is_late: int, validates: bool) -> str | None:
        if stop:
            return "stop"
        if step >= self.context.total_steps:
            return "final"
        if self.context.is_milestone(step):
            return "milestone"
        if validates:
            # Upstreams put averaged weights into the module meanwhile: no save is right then.
            return "validation"
        return "time" if is_late else None

    def _is_late(self) -> int:
        """Rank 0's clock decides for all."""
        late = time.monotonic() - self._last_save >= self.context.save_every_seconds
        return int(self._is_writer and late)

    # Saving

    def _save(self, trainer: pl.Trainer, pl_module: pl.LightningModule, reason: str) -> None:
        """Publish the current step on rank 0; every rank learns how it went."""
        begun = time.monotonic()
        writer = StepDirectoryIO(
            self.context,
            self._step,
            (lambda: averaged_weights(pl_module)) if self.context.export_bf16 else None,
            {"reason": reason},
        )
        strategy = trainer.strategy
        usual = strategy.checkpoint_io
        strategy.checkpoint_io = writer
        try:
            trainer.save_checkpoint(self.context.steps_dir / "unused", weights_only=False)
        finally:
            strategy.checkpoint_io = usual
        outcome = Outcome(self._agree(writer.outcome)[0])
        self._last_save = time.monotonic()
        if outcome is Outcome.SAVED:
            self._published = self._step
            self._failures = 0
            if writer.record is not None:
                self._event(
                    "saved",
                    step=self._step,
                    reason=reason,
                    seconds=self._last_save - begun,
                    bytes=writer.record.state_bytes,
                )
                if reason != "stop":
                    self._tidy()
        else:
            self._handle_failure(outcome, writer.error, reason)

    def _handle_failure(self, outcome: Outcome, error: Exception | None, reason: str) -> None:
        self._event(
            "save_failed", step=self._step, reason=reason, outcome=outcome.name, error=str(error)
        )
        if outcome is Outcome.FENCED:
            self._say(f"a newer attempt owns this run: {error}")
            raise SystemExit(FENCED)
        if outcome is Outcome.FAILED:
            why = error if error is not None else "see its log"
            raise RuntimeError(f"rank 0 could not save step {self._step}: {why}") from error
        self._failures += 1
        self._say(f"step {self._step} could not be saved ({self._failures} in a row): {error}")
        if reason in ("stop", "final") or self._failures >= FAILURES_BEFORE_LEAVING:
            raise SystemExit(STORAGE)

    def _tidy(self) -> None:
        try:
            tidy(self.context)
        except Exception as error:  # What is too much on disk must not end a training.
            self._event("tidy_failed", step=self._step, error=str(error))

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Add every rank's kept state, to the upstream's own checkpoints too."""
        assert self._agreement is not None
        ranks = self._agreement.gather({keeper.name: keeper.save() for keeper in self.keepers})
        checkpoint[STATE_KEY] = {"schema_version": 1, "ranks": ranks}
        loops.settle_counters(checkpoint)

    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Lay this rank's kept state ready for the first batch."""
        state = checkpoint.get(STATE_KEY)
        if state is None:
            self._event("state_not_kept", why="the checkpoint was not written by this callback")
            return
        if len(state["ranks"]) != trainer.world_size:
            raise RuntimeError(
                f"the checkpoint holds the state of {len(state['ranks'])} processes, but "
                f"{trainer.world_size} are running: resume with the nodes and devices of before"
            )
        self._loaded = state["ranks"][trainer.global_rank]

    # Validation

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Learn during how many batches all ranks can still agree."""
        assert self._agreement is not None
        self._validated = 0
        self._common_validation_batches = self._agreement.minimum(loops.validation_batches(trainer))

    def on_validation_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Leave without saving where a stop is requested: the step before is published."""
        self._validated += 1
        # Ranks may have unequal numbers of batches; behind the smallest nobody would answer.
        if self._validated <= self._common_validation_batches:
            self._leave_if_asked()

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Undo what the validation did to the random state, so that resuming need not repeat it."""
        if trainer.sanity_checking:
            return
        metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
        self._event("validation", step=trainer.global_step, metrics=metrics)
        if self._random_before_validation is not None:
            self._random.restore(self._random_before_validation)
            self._random_before_validation = None

    # Leaving

    def _request(self) -> int:
        assert self._latch is not None
        return _REQUESTS.index(self._latch.requested() or "")

    def _agree(self, first: int, second: int = 0) -> tuple[int, int]:
        assert self._agreement is not None
        return self._agreement.maximum(first, second)

    def _leave_if_asked(self) -> None:
        request, _ = self._agree(self._request())
        if request:
            self._leave(request)

    def _leave(self, request: int) -> NoReturn:
        assert self._latch is not None
        self._event(
            "stop",
            request=_REQUESTS[request],
            step=self._published,
            signals=self._latch.signals,
        )
        self._say(f"asked to stop ({_REQUESTS[request]}), leaving; step {self._published} is kept")
        raise SystemExit(REQUEUE)

    def _own_signals(self) -> None:
        assert self._latch is not None
        if not self._latch.is_installed():
            self._latch.install()
            self._event("signals_taken_back", step=self._step)

    # Telling

    def _event(self, name: str, **fields: Any) -> None:
        if self._is_writer:
            self._events.write(name, **fields)

    def _say(self, sentence: str) -> None:
        if self._is_writer:
            print(f"dlbhpc: {sentence}", flush=True)


def _loss(trainer: pl.Trainer, outputs: Any) -> float | None:
    """The step's loss as the module logged it, else as the last micro-batch returned it."""
    metrics = trainer.callback_metrics
    for name in _LOSS_NAMES:
        if name in metrics:
            return float(metrics[name])
    loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
    return None if loss is None else float(loss)
