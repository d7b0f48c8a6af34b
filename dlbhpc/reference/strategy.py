"""Data-parallel training whose sums do not depend on when the run was started."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor, nn


class FixedOrderDDPStrategy(DDPStrategy):
    """Processes and devices as in DDP, without the wrapper that reduces gradients.

    The wrapper rebuilds its buckets after the first step it sees. That changes the order of the
    sums, so that a resumed run differs in the last bits. The module reduces its own gradients
    with :func:`reduce_gradients` instead.
    """

    def configure_ddp(self) -> None:
        """Start every rank from rank 0's weights; leave the module as it is."""
        assert self.model is not None
        for tensor in (*self.model.parameters(), *self.model.buffers()):
            torch.distributed.broadcast(tensor.data, src=0)

    def _setup_model(self, model: nn.Module) -> Any:
        return model


@torch.no_grad()
def reduce_gradients(parameters: list[nn.Parameter], totals: Tensor) -> Tensor:
    """Sum gradients and ``totals`` = (loss sum, token count) over all ranks, then average.

    Everything travels in one flat 32-bit vector in the parameters' order: one sum, always cut the
    same way. The gradients are divided by the global token count in place; the global totals are
    returned.
    """
    gradients = [p.grad if p.grad is not None else torch.zeros_like(p) for p in parameters]
    flat = torch.cat([g.reshape(-1).float() for g in (*gradients, totals)])
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.all_reduce(flat)
    totals = flat[-2:]
    flat = flat[:-2] / totals[1]
    parts = torch.split(flat, [p.numel() for p in parameters])
    for parameter, part in zip(parameters, parts, strict=True):
        parameter.grad = part.view_as(parameter).to(parameter.dtype)
    return totals
