"""A tiny processed dataset, and runs of main.py on it."""

from __future__ import annotations

import json
import os
import random
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dlbhpc.steps import begin_attempt, recover

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
MAIN = ROOT / "dlbhpc" / "reference" / "main.py"
LENGTH = 16
TRAIN_SAMPLES = 53  # 6 batches of 8 and a tail of 5
VALIDATION_SAMPLES = 9
SPECIAL_TOKENS = ["[PAD]", "[EOS]", "[MASK]"]
WORDS = [f"w{number}" for number in range(29)]
GLOBAL_BATCH = 8
STEPS = 7

SMALL = [
    "mode=train",
    "data=pydoc",
    "model=mini",
    f"model.length={LENGTH}",
    "model.hidden_size=16",
    "model.cond_dim=8",
    f"loader.global_batch_size={GLOBAL_BATCH}",
    f"loader.eval_global_batch_size={GLOBAL_BATCH}",
    "trainer.accelerator=cpu",
    "lr_scheduler.num_warmup_steps=3",
    "eval.repeats=1",
    "eval.sampling_steps=4",
]


@pytest.fixture(scope="session")
def processed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A processed dataset of random tokens, the last block of each split partly padding."""
    from datasets import Dataset, DatasetDict
    from tokenizers import Tokenizer, models, pre_tokenizers

    folder = tmp_path_factory.mktemp("processed")
    chance = random.Random(3)
    tokens = range(len(SPECIAL_TOKENS), len(SPECIAL_TOKENS) + len(WORDS))

    def split(samples: int) -> Dataset:
        ids = [[chance.choice(tokens) for _ in range(LENGTH)] for _ in range(samples)]
        real = [[1] * LENGTH for _ in range(samples)]
        ids[-1][-5:], real[-1][-5:] = [0] * 5, [0] * 5
        return Dataset.from_dict({"input_ids": ids, "attention_mask": real})

    DatasetDict(train=split(TRAIN_SAMPLES), validation=split(VALIDATION_SAMPLES)).save_to_disk(
        str(folder)
    )
    vocabulary = {token: number for number, token in enumerate(SPECIAL_TOKENS + WORDS)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[PAD]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    (folder / "tokenizer").mkdir()
    tokenizer.save(str(folder / "tokenizer" / "tokenizer.json"))
    return folder


class Zygote:
    """The process of zygote.py."""

    def __init__(self) -> None:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "PL_"))}
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "zygote.py")],
            env={
                **kept,
                "PYTHONPATH": os.pathsep.join([str(ROOT), str(HERE)]),
                "PYTHONWARNINGS": "ignore",
                "CUDA_VISIBLE_DEVICES": "",
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, requests: list[dict[str, Any]]) -> list[int]:
        """Start these processes together and wait for them; their exit statuses."""
        assert self._process.stdin is not None and self._process.stdout is not None
        print(json.dumps(requests), file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        assert answer, "the zygote ended"
        return [int(status) for status in json.loads(answer)]

    def stop(self) -> None:
        """End the process."""
        self._process.communicate()


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    """Forks trainings."""
    process = Zygote()
    yield process
    process.stop()


class ReferenceRun:
    """One run of main.py in one folder; every :meth:`attempt` continues it."""

    def __init__(
        self,
        output: Path,
        processed: Path,
        zygote: Zygote,
        world: int = 1,
        accumulation: int = 1,
        workers: int = 0,
    ) -> None:
        self.output = output
        self.world = world
        self._zygote = zygote
        self.steps_dir = output / "steps"
        self.losses_file = output / "losses.jsonl"
        self.log = ""
        self.last_checkpoint = output / "last.ckpt"
        self.steps_dir.mkdir(parents=True)
        batch = GLOBAL_BATCH // (world * accumulation)
        self._overrides = [
            *SMALL,
            f"data.cache_dir={processed}",
            f"loader.batch_size={batch}",
            f"loader.eval_batch_size={batch}",
            f"loader.num_workers={workers}",
            f"trainer.devices={world}",
            f"trainer.accumulate_grad_batches={accumulation}",
            f"hydra.run.dir={output}",
            f"checkpointing.save_dir={output}",
            f"checkpointing.resume_ckpt_path={self.last_checkpoint}",
            "+callbacks.losses._target_=probes.RecordLoss",
            f"+callbacks.losses.path={self.losses_file}",
        ]

    def plain(self, *overrides: str) -> list[int]:
        """Train without the step callback."""
        return self._start([*self._overrides, *overrides], {})

    def attempt(self, *, signal_at: tuple[str, int] | None = None, milestone: int = 3) -> list[int]:
        """Begin, recover, train as the launcher does; the exit statuses of the ranks.

        ``signal_at`` = (name, step) sends rank 0 a signal after that step.
        """
        number = begin_attempt(self.steps_dir)
        folder = self.output / "attempts" / f"{number:05d}"
        folder.mkdir(parents=True)
        recovery = recover(self.steps_dir)
        if recovery.path is not None:
            shutil.copyfile(recovery.path / "training_state.pt", self.last_checkpoint)
        attempt_file = folder / "attempt.json"
        context = {
            "schema_version": 1,
            "attempt": number,
            "output": str(self.output),
            "steps_dir": str(self.steps_dir),
            "stop_file": str(folder / "stop"),
            "progress_file": str(folder / "progress.json"),
            "events_file": str(folder / "events.jsonl"),
            "contract": {"objective": "global_token_mean_v1"},
            "nodes": 1,
            "gpus_per_node": self.world,
            "total_steps": STEPS,
            "milestones": None,
            "milestone_every": milestone,
            "save_every_seconds": 3600,
            "keep_last": 2,
            "export_bf16": True,
            "resumed_from": recovery.record.step if recovery.record is not None else None,
        }
        attempt_file.write_text(json.dumps(context))
        overrides = list(self._overrides)
        if signal_at is not None:
            name, step = signal_at
            overrides += [
                "+callbacks.signal._target_=probes.SignalAt",
                f"+callbacks.signal.step={step}",
                f"+callbacks.signal.name={name}",
            ]
        overrides += [
            "+callbacks.dlbhpc_steps._target_=dlbhpc.inside.step_callback.StepCallback",
            f"checkpointing.resume_from_ckpt={recovery.path is not None}".lower(),
        ]
        return self._start(overrides, {"DLBHPC_ATTEMPT_FILE": str(attempt_file)})

    def _start(self, overrides: list[str], environment: dict[str, str]) -> list[int]:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        logs = [self.output / f"rank-{rank}.log" for rank in range(self.world)]
        statuses = self._zygote.run(
            [
                {
                    "argv": [str(MAIN), *overrides],
                    "environment": {
                        **environment,
                        "MASTER_ADDR": "127.0.0.1",
                        "MASTER_PORT": str(port),
                        "NODE_RANK": "0",
                        "LOCAL_RANK": str(rank),
                    },
                    "log": str(log),
                }
                for rank, log in enumerate(logs)
            ]
        )
        self.log = "".join(log.read_text() for log in logs)
        return statuses

    def losses(self) -> list[tuple[int, str]]:
        """(step, loss to the last bit) of every optimizer step, in the order of training."""
        return [tuple(json.loads(line)) for line in self.losses_file.read_text().splitlines()]

    def final_state(self) -> dict[str, Any]:
        """The checkpoint of the last step."""
        import torch

        path = self.steps_dir / f"step-{STEPS:08d}" / "training_state.pt"
        state: dict[str, Any] = torch.load(path, weights_only=True)
        return state

    def evaluation(self, step: int) -> dict[str, Any]:
        """What was evaluated at ``step``."""
        path = self.output / "evaluation" / f"step-{step:08d}.json"
        evaluation: dict[str, Any] = json.loads(path.read_text())
        return evaluation


@pytest.fixture
def make_run(tmp_path: Path, processed: Path, zygote: Zygote) -> Any:
    """Makes a run by name, world, accumulation and data loader workers."""

    def make(name: str, *sizes: int) -> ReferenceRun:
        return ReferenceRun(tmp_path / name, processed, zygote, *sizes)

    return make
