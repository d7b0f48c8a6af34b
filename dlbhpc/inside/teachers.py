"""Teachers that an upstream replaces as it trains, and that its own checkpoint leaves out."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Optional

import lightning.pytorch as pl
import torch

from dlbhpc.inside.keepers import Keeper


class SdttTeacher:
    """sdtt: the teacher of the current round, and the step of time that it is asked for.

    Left alone, a run that resumes within a round starts the schedule anew: with the first teacher
    and the first step of time, until the next round begins.
    """

    name = "teacher"

    def __init__(self, module: Any) -> None:
        self._module = module

    def save(self) -> dict[str, Any]:
        """Weights on the CPU, and the step as a number."""
        teacher = self._module.teacher[0]
        return {"dt": float(self._module.dt), "weights": _on_cpu(teacher)}

    def restore(self, state: dict[str, Any]) -> None:
        """Put the weights into the teacher that the module built."""
        self._module.dt = state["dt"]
        self._module.teacher[0].load_state_dict(state["weights"])


class DuoTeacher:
    """duo's distillation: the teacher, which is a copy of the student as a round begins.

    Left alone, a run that resumes within a round takes the resumed student for its teacher. Whether
    it drops out is kept as well: made in the check before training, which a resumed run does not
    repeat, it never does; made in a training step, it would.
    """

    name = "teacher"

    def __init__(self, module: Any) -> None:
        self._module = module

    def save(self) -> Optional[dict[str, Any]]:
        """Weights on the CPU, and the mode; None before the first loss, without a teacher yet."""
        teacher = self._module.teacher
        if teacher is None:
            return None
        return {"weights": _on_cpu(teacher), "training": teacher.training}

    def restore(self, state: Optional[dict[str, Any]]) -> None:
        """Make the teacher as the module does it, then give it the weights of this round."""
        if state is None:
            return
        if self._module.teacher is None:
            self._module.teacher = copy.deepcopy(self._module.backbone)
        self._module.teacher.load_state_dict(state["weights"])
        self._module.teacher.train(state["training"])


_KEEPERS: dict[str, Callable[[Any], Keeper]] = {
    "MultiRoundSDTT": SdttTeacher,
    "Distillation": DuoTeacher,
}
"""By the name of the upstream's module class."""


def teacher_keeper(module: pl.LightningModule) -> Optional[Keeper]:
    """The keeper of a module's teacher; None for a module whose teacher, if any, never changes."""
    if getattr(getattr(module, "config", None), "is_di4c", False):
        return None  # di4c keeps the first teacher for good.
    for kind in type(module).__mro__:
        if kind.__name__ in _KEEPERS:
            return _KEEPERS[kind.__name__](module)
    return None


def _on_cpu(network: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.detach().to("cpu") for name, value in network.state_dict().items()}
