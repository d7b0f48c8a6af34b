"""An exponential moving average of a model's parameters."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypedDict

import torch
from torch import Tensor, nn


class EmaState(TypedDict):
    """What a checkpoint holds; the keys of the pinned upstreams."""

    decay: float
    num_updates: int
    shadow_params: list[Tensor]


class ExponentialMovingAverage:
    """Averages trainable parameters, in their order.

    The decay warms up as min(decay, (1 + n) / (10 + n)) over n updates: a short run is then not
    dominated by the untrained weights that the average starts from.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], decay: float) -> None:
        if not 0 <= decay <= 1:
            raise ValueError(f"training.ema must lie in [0, 1], not {decay}")
        self.decay = decay
        self.num_updates = 0
        self.shadow_params = [p.detach().clone() for p in parameters if p.requires_grad]

    @torch.no_grad()
    def update(self, parameters: Iterable[nn.Parameter]) -> None:
        """Move the average towards ``parameters``."""
        self.num_updates += 1
        decay = min(self.decay, (1 + self.num_updates) / (10 + self.num_updates))
        trainable = (p for p in parameters if p.requires_grad)
        for shadow, parameter in zip(self.shadow_params, trainable, strict=True):
            shadow.lerp_(parameter, 1 - decay)

    @torch.no_grad()
    def copy_to(self, parameters: Iterable[nn.Parameter]) -> None:
        """Overwrite ``parameters`` with the average."""
        trainable = (p for p in parameters if p.requires_grad)
        for shadow, parameter in zip(self.shadow_params, trainable, strict=True):
            parameter.copy_(shadow)

    def to(self, device: torch.device) -> None:
        """Move the average to ``device``."""
        self.shadow_params = [shadow.to(device) for shadow in self.shadow_params]

    def state_dict(self) -> EmaState:
        """The state, by reference."""
        return {
            "decay": self.decay,
            "num_updates": self.num_updates,
            "shadow_params": self.shadow_params,
        }

    def load_state_dict(self, state: EmaState) -> None:
        """Take over a saved state.

        Raises:
            ValueError: it is the average of another model.
        """
        ours = [tuple(p.shape) for p in self.shadow_params]
        theirs = [tuple(p.shape) for p in state["shadow_params"]]
        if ours != theirs:
            raise ValueError("the checkpoint's EMA belongs to a model of another shape")
        self.decay = state["decay"]
        self.num_updates = state["num_updates"]
        self.shadow_params = [
            saved.to(own.device)
            for saved, own in zip(state["shadow_params"], self.shadow_params, strict=True)
        ]
