"""At which micro-batch of an epoch a data loader's next iterator begins."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, Optional

import torch
from torch.utils.data import DataLoader, DistributedSampler, SequentialSampler


def resume_at(loader: object, batches: int) -> bool:
    """Let the iterators that are made of a loader from now on leave out the first ``batches``.

    A batch sampler that has a method ``resume_at`` is asked itself; another is put inside one that
    has, which the loader then keeps. Returns False for a loader whose order cannot be repeated:
    left out batches would not be those that were seen.
    """
    ask: Optional[Callable[[int], None]]
    ask = getattr(getattr(loader, "batch_sampler", None), "resume_at", None)
    if ask is None:
        ask = _positioned(loader)
    if ask is None:
        return False
    ask(batches)
    return True


def _positioned(loader: Any) -> Optional[Callable[[int], None]]:
    if not isinstance(loader, DataLoader):
        return None
    # These alone draw an epoch's order from its number, and from nothing that ran before.
    sampler = getattr(loader.batch_sampler, "sampler", None)
    if not isinstance(sampler, (DistributedSampler, SequentialSampler)):
        return None
    # Lightning deals out another sampler's order where that is of no class that it knows: that of
    # torchdata's loaders, whose seed depends on all that ran before it was made.
    dealt_out = getattr(getattr(sampler, "dataset", None), "_sampler", None)
    generator = getattr(dealt_out, "generator", None)
    if dealt_out is not None and not isinstance(generator, torch.Generator):
        return None
    batches = PositionedBatches(loader.batch_sampler, generator)
    # A loader refuses another sampler once it is made, and one with persistent workers would go on
    # with the iterator that has the old one.
    loader.__dict__.update(batch_sampler=batches, _iterator=None)
    return batches.resume_at


class PositionedBatches:
    """A batch sampler around another one that can leave out the first batches of an epoch.

    Its length stays the whole epoch's, from which Lightning counts.
    """

    def __init__(self, batches: Any, generator: Optional[torch.Generator] = None) -> None:
        """``batches`` is a batch sampler whose order is the same whenever an epoch is repeated.

        A ``generator`` that the order is drawn from is seeded by the epoch, the same on all ranks.
        """
        self._batches = batches
        self._generator = generator
        self._left_out = 0

    @property
    def sampler(self) -> Any:
        """Where Lightning looks for ``set_epoch``."""
        return self._batches.sampler

    def resume_at(self, batches: int) -> None:
        """Let the next iterators leave out the first ``batches``."""
        self._left_out = batches
        # Samplers of the upstreams that were told a position themselves would leave it out again,
        # and they count from a checkpoint that may not be the one this run goes on from.
        if getattr(self.sampler, "restarting", False):
            self.sampler.restarting = False

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[Any]:
        if self._generator is not None:
            self._generator.manual_seed(self.sampler.seed + self.sampler.epoch)
        # Only indices are drawn for what is left out: no sample of it is loaded.
        return itertools.islice(iter(self._batches), self._left_out, None)
