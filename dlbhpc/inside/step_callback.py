"""The callback that publishes step directories and leaves on request, for every upstream.

Injected as one override, ``+callbacks.dlbhpc_steps._target_=`` and this class's full name.
"""

from __future__ import annotations

import io
from typing import Any, NoReturn

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback

from dlbhpc.exit_status import REQUEUE
from dlbhpc.inside import loops
from dlbhpc.inside.agreement import Agreement
from dlbhpc.inside.context import AttemptContext
from dlbhpc.inside.keepers import Keeper, RandomState
from dlbhpc.inside.latch import StopLatch
from dlbhpc.inside.progress import EventLog, ProgressFile
from dlbhpc.inside.saver import Saver
from dlbhpc.inside.saving import averaged_weights
from dlbhpc.inside.teachers import teacher_keeper
from dlbhpc.inside.workers import protect_workers

STATE_KEY = "dlbhpc"
"""Where a checkpoint holds what the keepers saved."""

STATE_VERSION = 2

_REQUESTS = ("", "file", "SIGUSR2", "SIGTERM")
"""Requests by the number that the ranks exchange."""

_LOSS_NAMES = ("train/loss", "trainer/loss")
"""Under which the reference upstream and the pinned ones log the loss of a step."""


class StepCallback(Callback):
    """Saves at milestones, after a time, before a validation, at the end, and when told to stop.

    The decision is made by all ranks together after every optimizer step. Having been told to
    stop, the process leaves with REQUEUE; :class:`~dlbhpc.inside.saver.Saver` says with what it
    leaves where it cannot save. Keepers hold what the upstream's own checkpoint leaves out:
    ``keepers`` each rank's own, ``shared_keepers`` what is the same on all ranks.
    """

    def __init__(self, context: AttemptContext | None = None) -> None:
        """Without a ``context`` the environment names the attempt's file."""
        self.context = context or AttemptContext.from_environment()
        # Upstreams print a batch before the training: those workers live as long as any.
        protect_workers()
        self._random = RandomState()
        self.keepers: list[Keeper] = [self._random]
        self.shared_keepers: list[Keeper] = []
        self._events = EventLog(self.context.events_file, self.context.attempt)
        self._progress = ProgressFile(
            self.context.progress_file, self.context.attempt, self.context.total_steps
        )
        self._step = 0
        self._checked_signals = False
        self._loaded: dict[str, Any] = {}
        self._random_before_validation: dict[str, Any] | None = None
        self._validated = 0
        self._common_validation_batches = 0

    # Start and end

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Refuse a wrong world, take the signals, open the ranks' channel."""
        self._refuse_other_world(trainer)
        if not hasattr(self, "_agreement"):
            self._is_writer = trainer.is_global_zero
            self._events.silent = not self._is_writer
            self._agreement = Agreement(trainer.world_size, trainer.global_rank)
            self._saver = Saver(self.context, self._agreement, self._events)
            self._latch = StopLatch(self.context.stop_file if self._is_writer else None)
            teacher = teacher_keeper(pl_module)
            self.shared_keepers += [teacher] if teacher is not None else []
        loops.disown_signals(trainer)
        self._latch.install()

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Leave at once where a stop is requested already."""
        self._events.write(
            "start", resumed_from=self.context.resumed_from, world=trainer.world_size
        )
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
        self._saver.start_clock()
        self._progress.start(self._step)
        self._leave_if_asked()

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Tell that the last step is done."""
        if trainer.global_step >= self.context.total_steps:
            self._events.write("finished", step=trainer.global_step)

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Give the signals back: nothing asks the latch from here on."""
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
            self._events.write("position_not_kept", consumed=consumed)
        # The random state last: what restores the others may draw from it.
        for keeper in (*self.shared_keepers, *self.keepers):
            if keeper.name in self._loaded:
                keeper.restore(self._loaded[keeper.name])
        self._loaded = {}
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
        if trainer.global_step != self._step:
            self._step = trainer.global_step
            self._after_step(trainer, pl_module, outputs, validates)
        self._random_before_validation = self._random.save() if validates else None

    def _after_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, validates: bool
    ) -> None:
        if not self._checked_signals:
            self._checked_signals = True
            self._own_signals()
        # Rank 0's clock decides for all.
        is_late = int(self._is_writer and self._saver.is_due())
        request, is_late = self._agreement.maximum(self._request(), is_late)
        reason = self._reason_to_save(request, is_late, validates)
        if reason is not None:
            self._saver.save(trainer, pl_module, reason)
        if self._is_writer and self._progress.is_due(self._step):
            self._progress.write(self._step, trainer.current_epoch, _loss(trainer, outputs))
        if request:
            self._leave(request)

    def _reason_to_save(self, request: int, is_late: int, validates: bool) -> str | None:
        if request:
            return "stop"
        if self._step >= self.context.total_steps:
            return "final"
        if self.context.is_milestone(self._step):
            return "milestone"
        if validates:
            # Upstreams put averaged weights into the module meanwhile: no save is right then.
            return "validation"
        return "time" if is_late else None

    # What a checkpoint leaves out

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Add what is kept, every rank's own and the shared, to the upstream's checkpoints too."""
        ranks = self._agreement.gather({keeper.name: keeper.save() for keeper in self.keepers})
        shared = {keeper.name: keeper.save() for keeper in self.shared_keepers}
        checkpoint[STATE_KEY] = {"schema_version": STATE_VERSION, "ranks": ranks, "shared": shared}
        loops.settle_counters(checkpoint)

    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Lay this rank's kept state ready for the first batch."""
        state = checkpoint.get(STATE_KEY)
        if state is None:
            self._events.write("state_not_kept", why="this callback did not write the checkpoint")
            return
        if state["schema_version"] != STATE_VERSION:
            raise RuntimeError(
                f"the checkpoint's kept state has version {state['schema_version']}, and this "
                f"dlbhpc reads {STATE_VERSION}: go on with the version that began the run"
            )
        if len(state["ranks"]) != trainer.world_size:
            raise RuntimeError(
                f"the checkpoint holds the state of {len(state['ranks'])} processes, but "
                f"{trainer.world_size} are running: resume with the nodes and devices of before"
            )
        self._loaded = {**state["shared"], **state["ranks"][trainer.global_rank]}

    # Validation

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Learn during how many batches all ranks can still agree."""
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
        self._events.write("validation", step=trainer.global_step, metrics=metrics)
        if self._random_before_validation is not None:
            self._random.restore(self._random_before_validation)
            self._random_before_validation = None

    # Leaving

    def _request(self) -> int:
        return _REQUESTS.index(self._latch.requested() or "")

    def _leave_if_asked(self) -> None:
        request, _ = self._agreement.maximum(self._request())
        if request:
            self._leave(request)

    def _leave(self, request: int) -> NoReturn:
        kept = self._saver.published
        self._events.write(
            "stop", request=_REQUESTS[request], step=kept, signals=self._latch.signals
        )
        self._events.say(f"asked to stop ({_REQUESTS[request]}), leaving; step {kept} is kept")
        self._events.leave(REQUEUE)

    def _own_signals(self) -> None:
        if not self._latch.is_installed():
            self._latch.install()
            self._events.write("signals_taken_back", step=self._step)


def _loss(trainer: pl.Trainer, outputs: Any) -> float | None:
    """The step's loss as the module logged it, else as the last micro-batch returned it."""
    metrics = trainer.callback_metrics
    for name in _LOSS_NAMES:
        if name in metrics:
            return float(metrics[name])
    loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
    return None if loss is None else float(loss)
