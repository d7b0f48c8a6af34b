"""Everything that leans on Lightning's private loop state, for Lightning 2.2 to 2.6.

Read in the sources of 2.2.1, 2.4.0, 2.5.5 and 2.6.6, and tested on the oldest and the newest.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import lightning.pytorch as pl

from dlbhpc.inside.positions import resume_at

UNBOUNDED = 2**62
"""Stands for the length of a loader that does not know its own."""


def disown_signals(trainer: pl.Trainer) -> None:
    """Keep Lightning from handling signals: its SIGTERM ends the process with status 0, unsaved,
    and its requeue signal calls ``scontrol`` and trains on."""
    trainer._signal_connector.__dict__["register_signal_handlers"] = _do_nothing


def _do_nothing() -> None:
    pass


def validation_follows(trainer: pl.Trainer) -> bool:
    """In ``on_train_batch_end``: whether Lightning validates before the next training batch."""
    fit_loop: Any = trainer.fit_loop
    return bool(fit_loop.epoch_loop._should_check_val_fx(fit_loop._data_fetcher))


def validation_batches(trainer: pl.Trainer) -> int:
    """In ``on_validation_start``: how many batches this rank is going to validate on."""
    counts = trainer.num_sanity_val_batches if trainer.sanity_checking else trainer.num_val_batches
    total = sum(counts)
    return UNBOUNDED if math.isinf(total) else int(total)


def settle_counters(checkpoint: dict[str, Any]) -> None:
    """Make a checkpoint of ``on_train_batch_end`` count that batch as completed.

    The hook runs before Lightning counts the batch. Old versions then resume one micro-batch
    short, which shifts the accumulation; newer ones guess from the missing count, and wrongly at
    the end of an epoch. Counted here, all of them resume at the next micro-batch.
    """
    fit_loop = checkpoint["loops"]["fit_loop"]
    progress = fit_loop["epoch_loop.batch_progress"]
    if progress["total"]["completed"] == progress["total"]["processed"] - 1:
        for counts in (progress["total"], progress["current"]):
            counts["completed"] = counts["processed"]
        fit_loop["epoch_loop.state_dict"]["_batches_that_stepped"] += 1


def keep_data_position(trainer: pl.Trainer, ready: Callable[[int, bool], None]) -> None:
    """In ``on_train_start``: have the loaders told their position, the first iterator made anew.

    Before every epoch each loader is told how many of its micro-batches are consumed (see
    :func:`dlbhpc.inside.positions.resume_at`); all iterators that are made of it from then on begin
    behind them (a loader with workers makes two and uses the second).

    Lightning makes the first iterator before the module's ``on_train_start``, where upstreams
    install another loader, and before it tells the sampler the epoch. It is made anew right before
    the first batch is fetched, in fresh and in resumed runs alike, so that both see the same
    order. Then ``ready`` is called, with the number of consumed micro-batches and whether every
    loader could be told.
    """
    epoch_loop: Any = trainer.fit_loop.epoch_loop
    usual_run_start = epoch_loop.on_run_start
    is_first = True

    def on_run_start(data_fetcher: Any) -> None:
        nonlocal is_first
        consumed: int = epoch_loop.batch_progress.current.ready
        loaders = data_fetcher.combined_loader.flattened
        told = [resume_at(loader, consumed) for loader in loaders]
        usual_run_start(data_fetcher)
        if is_first:
            is_first = False
            iter(data_fetcher)
            data_fetcher.fetched += consumed
            ready(consumed, all(told))

    epoch_loop.__dict__["on_run_start"] = on_run_start
