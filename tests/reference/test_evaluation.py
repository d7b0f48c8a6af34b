"""Validation perplexity."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest
import torch

from dlbhpc.reference.datamodule import Blocks
from dlbhpc.reference.evaluation import EvaluationConfig, validation_nll, write_json
from dlbhpc.reference.model import DiT, ModelConfig

MASK = 2
LENGTH = 16
REAL_TOKENS = 9 * LENGTH - 5
CONFIG = EvaluationConfig(seed=1, global_batch=4, batch=4, repeats=2, sampling_steps=1)


@pytest.fixture
def blocks(processed: Path) -> Blocks:
    return Blocks(processed, "validation", LENGTH)


def some_model() -> DiT:
    """An untrained model whose predictions are not uniform."""
    torch.manual_seed(0)
    model = DiT(ModelConfig(32, 16, 8, 1, 2, time_conditioning=False))
    torch.nn.init.normal_(model.output_layer.linear.weight)
    return model


def test_untrained_model_is_as_good_as_guessing(blocks: Blocks) -> None:
    model = DiT(ModelConfig(32, 16, 8, 1, 2, time_conditioning=False))
    nll, tokens = validation_nll(model, blocks, MASK, CONFIG, 0, 1)
    assert nll == pytest.approx(math.log(31), rel=0.05)
    assert tokens == REAL_TOKENS


def test_training_random_numbers_are_neither_used_nor_disturbed(blocks: Blocks) -> None:
    model = some_model()
    first = validation_nll(model, blocks, MASK, CONFIG, 0, 1)
    torch.manual_seed(9)
    before = torch.get_rng_state()
    assert validation_nll(model, blocks, MASK, CONFIG, 0, 1) == first
    assert torch.equal(torch.get_rng_state(), before)


def test_batch_on_a_device_changes_only_the_rounding(blocks: Blocks) -> None:
    whole, _ = validation_nll(some_model(), blocks, MASK, CONFIG, 0, 1)
    parts = dataclasses.replace(CONFIG, batch=1)
    nll, tokens = validation_nll(some_model(), blocks, MASK, parts, 0, 1)
    assert nll == pytest.approx(whole, rel=1e-5)
    assert tokens == REAL_TOKENS


def test_other_masks_give_another_estimate(blocks: Blocks) -> None:
    first, _ = validation_nll(some_model(), blocks, MASK, CONFIG, 0, 1)
    other = dataclasses.replace(CONFIG, seed=2)
    assert validation_nll(some_model(), blocks, MASK, other, 0, 1)[0] != first


def test_result_is_written_whole_and_alone(tmp_path: Path) -> None:
    path = tmp_path / "evaluation" / "step-00000001.json"
    write_json(path, {"step": 1})
    write_json(path, {"step": 2})
    assert path.read_text() == '{\n  "step": 2\n}\n'
    assert list(path.parent.iterdir()) == [path]
