"""The moving average of the weights."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dlbhpc.reference.ema import ExponentialMovingAverage


def test_decay_warms_up_to_its_limit() -> None:
    parameter = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    ema = ExponentialMovingAverage([parameter], decay=0.3)
    parameter.data += 1
    expected = 0.0
    for update in range(1, 6):
        ema.update([parameter])
        decay = min(0.3, (1 + update) / (10 + update))
        expected = decay * expected + (1 - decay)
        assert ema.shadow_params[0].item() == pytest.approx(expected)


def test_only_trainable_parameters_are_averaged_and_copied_back() -> None:
    free, frozen = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(3), requires_grad=False)
    ema = ExponentialMovingAverage([frozen, free], decay=0.5)
    free.data.zero_()
    frozen.data.zero_()
    ema.copy_to([frozen, free])
    assert free.tolist() == [1, 1] and frozen.tolist() == [0, 0, 0]


def test_state_comes_back_exactly() -> None:
    parameter = nn.Parameter(torch.randn(4))
    ema = ExponentialMovingAverage([parameter], decay=0.9)
    for _ in range(3):
        parameter.data += torch.randn(4)
        ema.update([parameter])
    other = ExponentialMovingAverage([parameter], decay=0.5)
    other.load_state_dict(ema.state_dict())
    for each in (ema, other):
        each.update([parameter])
    assert other.num_updates == ema.num_updates == 4
    assert torch.equal(other.shadow_params[0], ema.shadow_params[0])


def test_another_models_average_and_an_impossible_decay_are_refused() -> None:
    ema = ExponentialMovingAverage([nn.Parameter(torch.zeros(2))], decay=0.9)
    other = ExponentialMovingAverage([nn.Parameter(torch.zeros(3))], decay=0.9)
    with pytest.raises(ValueError, match="another shape"):
        other.load_state_dict(ema.state_dict())
    with pytest.raises(ValueError, match=r"training\.ema"):
        ExponentialMovingAverage([], decay=1.5)
