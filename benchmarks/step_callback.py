"""What the step callback costs a training step: the same training with and without it.

Prints microseconds a step and the ratio, for one process and for two that agree at every step.
The step is that of a small model, a few ms on one core; real ones take a hundred times as long.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

STEPS = 200
ROUNDS = 4


def context_in(folder: Path, world: int) -> Path:
    """An attempt's file whose saves never fall due."""
    (folder / "steps").mkdir(exist_ok=True)
    path = folder / "attempt.json"
    content: dict[str, Any] = {
        "attempt": 1,
        "output": str(folder),
        "steps_dir": str(folder / "steps"),
        "stop_file": str(folder / "stop"),
        "progress_file": str(folder / "progress.json"),
        "events_file": str(folder / "events.jsonl"),
        "contract": {},
        "nodes": 1,
        "gpus_per_node": world,
        "total_steps": 10**9,
        "milestones": None,
        "milestone_every": None,
        "save_every_seconds": 10**9,
        "keep_last": 2,
        "export_bf16": False,
        "resumed_from": None,
    }
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def seconds_a_step(attempt: Path | None, world: int) -> float:
    """Train for a while; the time between the first and the last step."""
    import lightning.pytorch as pl
    import torch
    from lightning.pytorch.strategies import DDPStrategy
    from torch.utils.data import DataLoader

    from dlbhpc.inside.context import AttemptContext
    from dlbhpc.inside.step_callback import StepCallback

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = torch.nn.Sequential(
                torch.nn.Linear(512, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 512)
            )

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return self.net(batch).square().mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=1e-3)

    class Clock(pl.Callback):
        def __init__(self) -> None:
            self.times: list[float] = []

        def on_train_batch_start(self, *args: Any) -> None:
            self.times.append(time.perf_counter())

    clock = Clock()
    callbacks: list[pl.Callback] = [clock]
    if attempt is not None:
        callbacks.append(StepCallback(AttemptContext.from_file(attempt)))
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=world,
        strategy=DDPStrategy(process_group_backend="gloo") if world > 1 else "auto",
        max_steps=STEPS,
        callbacks=callbacks,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Module(), DataLoader(torch.randn(STEPS * 64 * world, 512), batch_size=64))
    pairs = zip(clock.times[-STEPS:-1], clock.times[1 - STEPS :], strict=True)
    # The fast steps: those in which other programs on the machine did not take part.
    return statistics.quantiles((later - earlier for earlier, later in pairs), n=10)[0]


def measure(world: int) -> None:
    """One rank's part: alternate, so that a busy machine disturbs both alike; print the result."""
    import logging
    import warnings

    import torch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        attempt = context_in(Path(folder), world)
        without, with_callback = [], []
        for _ in range(ROUNDS):
            without.append(seconds_a_step(None, world))
            with_callback.append(seconds_a_step(attempt, world))
    if os.environ["LOCAL_RANK"] == "0":
        plain, ours = min(without), min(with_callback)
        print(
            f"{world} process{'es' if world > 1 else ''}: {plain * 1e6:.0f} µs a step without, "
            f"{ours * 1e6:.0f} µs with: {(ours - plain) * 1e6:+.0f} µs, ratio {ours / plain:.3f}"
        )


def main() -> None:
    """Start the ranks of both measurements."""
    for world in (1, 2):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        ranks = [
            subprocess.Popen(
                [sys.executable, "-W", "ignore", __file__, str(world)],
                env={
                    **os.environ,
                    "LOCAL_RANK": str(rank),
                    "NODE_RANK": "0",
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": port,
                    "PYTHONPATH": str(Path(__file__).parents[1]),
                },
                stderr=subprocess.DEVNULL,
            )
            for rank in range(world)
        ]
        statuses = [rank.wait() for rank in ranks]
        if any(statuses):
            raise SystemExit(f"a rank of {world} failed")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        measure(int(sys.argv[1]))
    else:
        main()
