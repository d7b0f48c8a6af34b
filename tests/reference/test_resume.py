"""A run that is interrupted and resumed ends as if nothing had happened, to the last bit."""

from __future__ import annotations

import signal
from typing import Any

import pytest
import torch

from dlbhpc.exit_status import REQUEUE

STEPS = 7


def differences(ours: Any, theirs: Any, where: str = "") -> list[str]:
    """The places at which two checkpoints differ."""
    if isinstance(ours, torch.Tensor):
        same = ours.dtype == theirs.dtype and torch.equal(ours, theirs)
        return [] if same else [where]
    if isinstance(ours, dict):
        if ours.keys() != theirs.keys():
            return [f"{where}: {sorted(ours)} != {sorted(theirs)}"]
        return [d for key in ours for d in differences(ours[key], theirs[key], f"{where}.{key}")]
    if isinstance(ours, list | tuple):
        if len(ours) != len(theirs):
            return [f"{where}: {len(ours)} != {len(theirs)} items"]
        pairs = enumerate(zip(ours, theirs, strict=True))
        return [d for i, (a, b) in pairs for d in differences(a, b, f"{where}[{i}]")]
    return [] if ours == theirs else [f"{where}: {ours!r} != {theirs!r}"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("world", "accumulation", "workers"), [(1, 1, 0), (1, 1, 2), (2, 2, 0), (4, 1, 0)]
)
def test_interrupted_run_ends_like_the_uninterrupted_one(
    make_run: Any, world: int, accumulation: int, workers: int
) -> None:
    whole = make_run("whole", world, accumulation, workers)
    assert whole.attempt() == [0] * world, whole.log
    assert [step for step, _ in whole.losses()] == list(range(1, STEPS + 1))

    broken = make_run("broken", world, accumulation, workers)
    assert broken.attempt(signal_at=("SIGTERM", 1)) == [REQUEUE] * world, broken.log
    # Killed two steps after the milestone at step 3: these are trained again.
    assert broken.attempt(signal_at=("SIGKILL", 5))[0] == -signal.SIGKILL, broken.log
    assert broken.attempt(signal_at=("SIGUSR2", 6)) == [REQUEUE] * world, broken.log
    assert broken.attempt() == [0] * world, broken.log

    assert [step for step, _ in broken.losses()] == [1, 2, 3, 4, 5, 4, 5, 6, 7]
    assert set(broken.losses()) == set(whole.losses())
    ours, theirs = broken.final_state(), whole.final_state()
    for state in (ours, theirs):
        assert {"state_dict", "optimizer_states", "lr_schedulers", "ema", "dlbhpc"} <= state.keys()
        del state["loops"]  # some versions of Lightning count restarts here
    assert differences(ours, theirs) == []
    assert broken.evaluation(STEPS) == whole.evaluation(STEPS)


@pytest.mark.slow
def test_world_and_accumulation_change_only_the_rounding(make_run: Any) -> None:
    losses, weights, perplexities = [], [], []
    for world, accumulation in ((1, 1), (1, 2), (2, 1)):
        run = make_run(f"{world}-{accumulation}", world, accumulation)
        assert run.attempt() == [0] * world, run.log
        losses.append(torch.tensor([float.fromhex(loss) for _, loss in run.losses()]))
        weights.append(run.final_state()["state_dict"])
        perplexities.append(run.evaluation(STEPS)["val_ppl"])
    for other in (1, 2):
        torch.testing.assert_close(losses[other], losses[0], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(weights[other], weights[0], rtol=1e-2, atol=1e-4)
        assert perplexities[other] == pytest.approx(perplexities[0], rel=1e-4)
