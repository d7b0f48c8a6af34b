"""How the ranks of one run come to the same decision at the same step."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist


class Agreement:
    """Small collectives on the CPU, apart from the upstream's own group.

    Every rank must make the same calls in the same order. With one process nothing is sent.
    """

    def __init__(self, world: int, rank: int) -> None:
        """To be made by all ranks together, after the upstream's process group."""
        self._rank = rank
        self._world = world
        self._group = dist.new_group(backend="gloo") if world > 1 else None
        self._pair = torch.zeros(2, dtype=torch.int64)

    def maximum(self, first: int, second: int = 0) -> tuple[int, int]:
        """The largest value of each number over all ranks."""
        if self._group is None:
            return first, second
        self._pair[0] = first
        self._pair[1] = second
        dist.all_reduce(self._pair, op=dist.ReduceOp.MAX, group=self._group)
        largest = self._pair.tolist()
        return largest[0], largest[1]

    def minimum(self, number: int) -> int:
        """The smallest value over all ranks."""
        return -self.maximum(-number)[0]

    def gather(self, item: Any) -> list[Any]:
        """Every rank's item in order of ranks on rank 0, an empty list elsewhere."""
        if self._group is None:
            return [item]
        items: list[Any] = [None] * self._world if self._rank == 0 else []
        dist.gather_object(item, items if self._rank == 0 else None, dst=0, group=self._group)
        return items
