"""State of a training process that the upstream's own checkpoint leaves out."""

from __future__ import annotations

import random
import sys
from typing import Any, Protocol

import torch


class Keeper(Protocol):
    """One rank's share of such state; ``save`` returns plain data and tensors on the CPU."""

    name: str

    def save(self) -> Any:
        """The state now."""

    def restore(self, state: Any) -> None:
        """Make the state what ``save`` once returned."""


class RandomState:
    """The random generators of Python, NumPy (where it is imported), torch and every GPU."""

    name = "random"

    def save(self) -> dict[str, Any]:
        """Only plain data and tensors, which ``torch.load(weights_only=True)`` accepts."""
        version, words, gauss = random.getstate()
        state: dict[str, Any] = {
            "python": [version, torch.tensor(words), gauss],
            "torch": torch.get_rng_state(),
            "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        }
        numpy = sys.modules.get("numpy")
        if numpy is not None:
            kind, keys, position, has_gauss, gauss = numpy.random.get_state()
            state["numpy"] = [
                str(kind),
                torch.tensor([int(key) for key in keys]),
                int(position),
                int(has_gauss),
                float(gauss),
            ]
        return state

    def restore(self, state: dict[str, Any]) -> None:
        """Restore what was saved; a GPU that was not there then is left as it is."""
        version, words, gauss = state["python"]
        random.setstate((version, tuple(words.tolist()), gauss))
        torch.set_rng_state(state["torch"])
        for device, cuda_state in enumerate(state["cuda"][: torch.cuda.device_count()]):
            torch.cuda.set_rng_state(cuda_state, device)
        if "numpy" in state:
            import numpy

            kind, keys, position, has_gauss, gauss = state["numpy"]
            numpy.random.set_state(
                (kind, keys.numpy().astype(numpy.uint32), position, has_gauss, gauss)
            )
