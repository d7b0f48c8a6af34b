"""What the step callback costs a training step: one training, with it in every second step.

Prints microseconds a step and the ratio, for one process and for two that agree at every step.
Taking turns within one run, both see the same machine, however busy it is. The step is that of a
small model, a few ms on one core; those of the locked recipes take a hundred times as long.
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

STEPS = 1000


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


def seconds_a_step(attempt: Path, world: int) -> tuple[float, float]:
    """Train for a while; the time of a step without and with the callback."""
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

    class EverySecond(StepCallback):
        def __init__(self) -> None:
            super().__init__(AttemptContext.from_file(attempt))
            self.times: list[float] = []

        def on_train_batch_start(self, *args: Any) -> None:
            self.times.append(time.perf_counter())

        def on_train_batch_end(self, *args: Any) -> None:
            if len(self.times) % 2 == 0:
                super().on_train_batch_end(*args)

    callback = EverySecond()
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=world,
        strategy=DDPStrategy(process_group_backend="gloo") if world > 1 else "auto",
        max_steps=STEPS,
        callbacks=[callback],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    data: Any = torch.randn(STEPS * 16 * world, 512)
    trainer.fit(Module(), DataLoader(data, batch_size=16))
    times = callback.times
    steps = [later - earlier for earlier, later in zip(times, times[1:], strict=False)]
    # The fast steps: those in which other programs on the machine did not take part.
    without, with_callback = (statistics.quantiles(steps[odd::2], n=10)[0] for odd in (0, 1))
    return without, with_callback


def measure(world: int) -> None:
    """One rank's part; rank 0 prints the result."""
    import torch

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        without, ours = seconds_a_step(context_in(Path(folder), world), world)
    if os.environ["LOCAL_RANK"] == "0":
        print(
            f"{world} process{'es' if world > 1 else ''}: {without * 1e6:.0f} µs a step without, "
            f"{ours * 1e6:.0f} µs with: {(ours - without) * 1e6:+.0f} µs, "
            f"ratio {ours / without:.3f}"
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
