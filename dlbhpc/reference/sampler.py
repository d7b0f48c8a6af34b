"""Which samples a rank trains on, in which order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch.utils.data import Sampler

from dlbhpc.geometry import EpochPlan


def share(size: int, parts: int, index: int) -> tuple[int, int]:
    """Bounds of part ``index`` when ``size`` things are dealt to ``parts`` in order.

    Parts differ by at most one; the first ones are the larger.
    """
    small, larger = divmod(size, parts)
    start = index * small + min(index, larger)
    return start, start + small + (index < larger)


@dataclass(frozen=True)
class MicroBatch:
    """One rank's part of one optimizer step: samples ``start`` to ``stop`` of the global batch.

    ``step`` counts the epoch's optimizer steps from 0; ``size`` is the whole global batch's.
    """

    step: int
    size: int
    start: int
    stop: int


def micro_batch(plan: EpochPlan, rank: int, index: int) -> MicroBatch:
    """The ``index``-th micro-batch of ``rank`` in an epoch: its rank's part, then its own."""
    step, micro = divmod(index, plan.accumulation)
    size = plan.global_batch if step < plan.steps - 1 else plan.tail
    first, last = share(size, plan.world, rank)
    start, stop = share(last - first, plan.accumulation, micro)
    return MicroBatch(step, size, first + start, first + stop)


class EpochSampler(Sampler[list[int]]):
    """Yields one rank's micro-batches: every sample once an epoch, none padded or dropped.

    The order is a permutation of the whole split that depends on seed and epoch alone, so that
    every world size presents the same global batches.
    """

    def __init__(self, plan: EpochPlan, rank: int, seed: int) -> None:
        self.plan = plan
        self.rank = rank
        self.seed = seed
        self.epoch = 0
        self._start = 0

    @property
    def sampler(self) -> EpochSampler:
        """Where Lightning looks for ``set_epoch`` on a loader's batch sampler."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """Choose the permutation of the next iterator."""
        self.epoch = epoch

    def resume_at(self, batches: int) -> None:
        """Let the next iterator leave out the ``batches`` micro-batches consumed already."""
        if not 0 <= batches <= len(self):
            raise ValueError(f"cannot resume at micro-batch {batches} of an epoch of {len(self)}")
        self._start = batches

    def __len__(self) -> int:
        return self.plan.steps * self.plan.accumulation

    def __iter__(self) -> Iterator[list[int]]:
        # A generator: the position is used up when the first batch is asked for, since a loader
        # with workers makes two iterators and asks the second.
        start, self._start = self._start, 0
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        order = torch.randperm(self.plan.samples, generator=generator).tolist()
        for index in range(start, len(self)):
            yield self._samples(order, index)

    def _samples(self, order: list[int], index: int) -> list[int]:
        part = micro_batch(self.plan, self.rank, index)
        first = part.step * self.plan.global_batch
        return order[first + part.start : first + part.stop]
