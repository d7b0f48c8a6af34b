"""The sum of gradients, here of one process (test_resume has more)."""

from __future__ import annotations

import torch
from torch import nn

from dlbhpc.reference.strategy import reduce_gradients


def test_gradients_become_the_token_mean() -> None:
    weight, bias, unused = (nn.Parameter(torch.zeros(n)) for n in (4, 2, 3))
    weight.grad, bias.grad = torch.arange(4.0), torch.ones(2)
    totals = reduce_gradients([weight, bias, unused], torch.tensor([30.0, 10.0]))
    assert totals.tolist() == [30, 10]
    torch.testing.assert_close(weight.grad, torch.arange(4.0) / 10)
    torch.testing.assert_close(bias.grad, torch.full((2,), 0.1))
    assert unused.grad is not None and unused.grad.tolist() == [0, 0, 0]


def test_gradient_keeps_its_shape_and_type() -> None:
    weight = nn.Parameter(torch.zeros(2, 3, dtype=torch.bfloat16))
    weight.grad = torch.ones_like(weight)
    reduce_gradients([weight], torch.tensor([1.0, 4.0]))
    assert weight.grad.shape == (2, 3) and weight.grad.dtype is torch.bfloat16
    assert (weight.grad == 0.25).all()
