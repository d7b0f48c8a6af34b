"""Small teachers of the shape that the upstreams save."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dlbhpc.inputs.teacher.names import INV_FREQ, Backbone, expected

torch = pytest.importorskip("torch", reason="teachers are torch checkpoints")

BACKBONE = Backbone(blocks=2, heads=2)
BASE, HIDDEN, CONDITION, FREQUENCIES = 20, 8, 6, 4


def make_state(vocab: int = BASE, blocks: int = 2, seed: int = 0, **sizes: int) -> dict[str, Any]:
    """A backbone's state of normal values, names as the network has them, without prefixes."""
    generator = torch.Generator().manual_seed(seed)
    letters = {"v": vocab, "h": HIDDEN, "c": CONDITION, "f": FREQUENCIES, **sizes}
    return {
        name: torch.randn(
            [int(unit[:-1] or 1) * letters[unit[-1]] for unit in form.split()],
            generator=generator,
        )
        for name, form in expected(blocks).items()
    }


def save(path: Path, state: dict[str, Any], prefix: str = "backbone.", **more: Any) -> Path:
    """A checkpoint as Lightning writes it."""
    content = {"state_dict": {prefix + name: value for name, value in state.items()}, **more}
    torch.save({"global_step": 5, "epoch": 1, "ema": {"decay": 0.9}, **content}, path)
    return path


def trained(
    path: Path, state: dict[str, Any], prefix: str = "backbone.", heads: int = 2, **more: Any
) -> Path:
    """A checkpoint as duo and flm leave it: with the rotary buffer, and averages in their order."""
    averages = [tensor.clone() for name, tensor in state.items() if name != INV_FREQ]
    ema = {"decay": 0.9, "num_updates": 5, "shadow_params": averages}
    buffer = {INV_FREQ: torch.ones(state["blocks.0.norm1.weight"].shape[0] // (2 * heads))}
    return save(path, {**buffer, **state}, prefix, **{"ema": ema, "loops": {}, **more})


def hyper_parameters(**config: Any) -> dict[str, Any]:
    """What the upstreams leave in their checkpoints: a configuration object and a tokenizer."""
    from omegaconf import OmegaConf

    return {"config": OmegaConf.create(config), "tokenizer": Path("/some/tokenizer")}
