"""Writes a trainer's checkpoint as a step directory, and says how it went."""

from __future__ import annotations

import enum
import time
from collections.abc import Callable, Iterator
from typing import IO, Any, cast

import lightning.pytorch as pl
import torch
from lightning.pytorch.plugins.io import CheckpointIO
from torch import Tensor

from dlbhpc.inside.context import AttemptContext
from dlbhpc.steps import Fenced, StepRecord, open_publication, retain

RETRY_PAUSE = 2.0
"""Seconds before the second try: a quota or a server that answers late is often well by then."""


class Outcome(enum.IntEnum):
    """How a save went. The largest of all ranks' outcomes is the run's."""

    SAVED = 0
    STORAGE = 1
    FENCED = 2
    FAILED = 3


class StepDirectoryIO(CheckpointIO):
    """Stands in for a strategy's checkpoint IO during one save; used on rank 0.

    It keeps an error instead of raising it, since the other ranks wait for rank 0 in a barrier
    that follows; ``outcome`` and ``error`` tell what happened.
    """

    def __init__(
        self,
        context: AttemptContext,
        step: int,
        export: Callable[[], dict[str, Tensor]] | None,
        extra: dict[str, Any],
    ) -> None:
        """``export`` makes the weights of ``model_bf16.pt``; ``extra`` goes into the record."""
        self._context = context
        self._step = step
        self._export = export
        self._extra = extra
        self.record: StepRecord | None = None
        self.error: Exception | None = None

    @property
    def outcome(self) -> Outcome:
        """How the save went; SAVED on the ranks that had nothing to write."""
        if self.error is None:
            return Outcome.SAVED
        if isinstance(self.error, Fenced):
            return Outcome.FENCED
        return Outcome.STORAGE if is_storage_failure(self.error) else Outcome.FAILED

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None
    ) -> None:
        """Publish, once more after a pause where the storage failed. ``path`` is not used."""
        try:
            try:
                self._publish(checkpoint)
            except Exception as error:
                if isinstance(error, Fenced) or not is_storage_failure(error):
                    raise
                time.sleep(RETRY_PAUSE)
                self._publish(checkpoint)
        except Exception as error:
            self.error = error

    def load_checkpoint(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Not part of a save."""
        raise NotImplementedError("step directories are loaded through their training_state.pt")

    def remove_checkpoint(self, path: Any) -> None:
        """Not part of a save."""
        raise NotImplementedError("step directories are removed by dlbhpc.steps.retain")

    def _publish(self, checkpoint: dict[str, Any]) -> None:
        context = self._context
        with open_publication(
            context.steps_dir, step=self._step, attempt=context.attempt
        ) as publication:
            with publication.create("training_state.pt") as file:
                torch.save(checkpoint, cast(IO[bytes], file))
            if self._export is not None:
                with publication.create("model_bf16.pt") as file:
                    torch.save({"state_dict": self._export()}, cast(IO[bytes], file))
            self.record = publication.commit(
                contract=dict(context.contract), world=context.world, extra=self._extra
            )


def is_storage_failure(error: BaseException) -> bool:
    """Whether an operating system's error is at the root of this one.

    The archive writer of ``torch.save`` puts an error of its own on top of the file's.
    """
    return any(isinstance(link, OSError) for link in _chain(error))


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def tidy(context: AttemptContext) -> None:
    """Remove step directories that neither the last few nor a milestone keep."""
    retain(context.steps_dir, keep_last=context.keep_last, milestones=context.is_milestone)


def averaged_weights(module: pl.LightningModule) -> dict[str, Tensor]:
    """The exponential moving average of the trainable parameters by name, in bfloat16.

    The average is the upstreams' ``ema.shadow_params``, a list in the parameters' order.
    Raises RuntimeError where the module has no such list, or one of another length.
    """
    names = [name for name, value in module.named_parameters() if value.requires_grad]
    shadow = getattr(getattr(module, "ema", None), "shadow_params", None)
    if shadow is None or len(shadow) != len(names):
        found = "no list" if shadow is None else f"{len(shadow)} tensors"
        raise RuntimeError(
            f"cannot export averaged weights: ema.shadow_params of {type(module).__name__} has "
            f"{found} for {len(names)} trainable parameters; set export_bf16 to false for it"
        )
    return {
        name: value.detach().to(device="cpu", dtype=torch.bfloat16)
        for name, value in zip(names, shadow)
    }
