"""Runs of the toy trainer: attempts begun, recovered and resumed as the launcher does."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dlbhpc.steps import begin_attempt, recover

ROOT = Path(__file__).parents[2]
PACKAGES = ROOT / ".cache" / "upstream-packages"
"""Holds torchdata, where it was installed; behind everything else on the path."""
CONTRACT = {"objective": "toy", "seed": 1}


class ToyRun:
    """One run in one folder; every :meth:`attempt` continues it."""

    def __init__(self, output: Path, zygote: Zygote, **options: Any) -> None:
        self.output = output
        self.zygote = zygote
        self.steps_dir = output / "steps"
        self.options = options
        self.attempts = 0
        self.logs: list[str] = []
        output.mkdir(parents=True)
        self.steps_dir.mkdir()

    @property
    def world(self) -> int:
        return int(self.options.get("devices", 1))

    @property
    def stop_file(self) -> Path:
        """Where the next attempt looks for a request."""
        return self.output / "attempts" / f"{self.attempts + 1:05d}" / "stop"

    def attempt(self, context: dict[str, Any] | None = None, **options: Any) -> list[int]:
        """Begin, resume, train; the exit statuses of the ranks (negative for a signal)."""
        self.attempts = begin_attempt(self.steps_dir)
        folder = self.output / "attempts" / f"{self.attempts:05d}"
        folder.mkdir(parents=True)
        recovery = recover(self.steps_dir, contract=CONTRACT, world=self.world)
        resume = None
        if recovery.record is not None and recovery.path is not None:
            resume = self.output / "last.ckpt"
            shutil.copyfile(recovery.path / "training_state.pt", resume)
        merged = {**self.options, **options}
        attempt = {
            "schema_version": 1,
            "attempt": self.attempts,
            "output": str(self.output),
            "steps_dir": str(self.steps_dir),
            "stop_file": str(folder / "stop"),
            "progress_file": str(folder / "progress.json"),
            "events_file": str(folder / "events.jsonl"),
            "contract": CONTRACT,
            "nodes": 1,
            "gpus_per_node": self.world,
            "total_steps": self.total_steps,
            "milestones": None,
            "milestone_every": None,
            "save_every_seconds": 3600,
            "keep_last": 2,
            # The teacher of duo's distillation counts among the module's parameters, not the EMA's.
            "export_bf16": merged.get("teacher") != "duo",
            "resumed_from": recovery.record.step if recovery.record is not None else None,
            **(context or {}),
        }
        (folder / "attempt.json").write_text(json.dumps(attempt))
        merged = {"resume": str(resume) if resume else None, **merged, "output": str(self.output)}
        return self._start(merged, folder / "attempt.json")

    def _start(self, options: dict[str, Any], attempt_file: Path) -> list[int]:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        logs = [attempt_file.with_name(f"rank-{rank}.log") for rank in range(self.world)]
        for rank, log in enumerate(logs):
            environment = {
                "DLBHPC_ATTEMPT_FILE": str(attempt_file),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "NODE_RANK": "0",
                "LOCAL_RANK": str(rank),
            }
            self.zygote.start({"options": options, "environment": environment, "log": str(log)})
        statuses = self.zygote.wait()
        self.logs = [log.read_text() for log in logs]
        return statuses

    @property
    def total_steps(self) -> int:
        """Optimizer steps of the whole run."""
        options = {"samples": 48, "accumulation": 1, "epochs": 1, **self.options}
        batches = options["samples"] // (2 * self.world)
        steps = -(-batches // options["accumulation"]) * options["epochs"]
        return min(steps, options.get("max_steps", steps))

    def steps(self) -> list[int]:
        """The published steps."""
        return sorted(int(p.name.split("-")[1]) for p in self.steps_dir.glob("step-*"))

    def events(self, attempt: int | None = None) -> list[dict[str, Any]]:
        """What the attempt told, the last one by default."""
        number = attempt or self.attempts
        path = self.output / "attempts" / f"{number:05d}" / "events.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()]

    def event(self, name: str) -> dict[str, Any]:
        """The last attempt's only event of this name."""
        found = [event for event in self.events() if event["event"] == name]
        assert len(found) == 1, self.events()
        return found[0]

    def progress(self) -> dict[str, Any]:
        """The last attempt's progress file."""
        path = self.output / "attempts" / f"{self.attempts:05d}" / "progress.json"
        return dict(json.loads(path.read_text()))

    def samples(self) -> list[list[Any]]:
        """Per rank: [step, samples] of every micro-batch that was trained on, in order."""
        return [
            [
                json.loads(line)
                for line in (self.output / f"samples-{rank}.jsonl").read_text().splitlines()
            ]
            for rank in range(self.world)
        ]

    def final(self) -> list[dict[str, Any]]:
        """Per rank: the last step and one digest over everything that must come back."""
        return [
            json.loads((self.output / f"final-{rank}.json").read_text())
            for rank in range(self.world)
        ]


class Zygote:
    """A process with one version of Lightning imported, that forks runs; see zygote.py."""

    def __init__(self, lightning: Path | None) -> None:
        path = [str(folder) for folder in (lightning, ROOT, PACKAGES) if folder is not None]
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "PL_"))}
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("zygote.py"))],
            env={
                **kept,
                "PYTHONPATH": os.pathsep.join(path),
                "PYTHONWARNINGS": "ignore",
                "CUDA_VISIBLE_DEVICES": "",
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._started: list[str] = []

    def start(self, request: dict[str, Any]) -> None:
        """Start one run."""
        self._started.append(self._ask(request).strip())

    def wait(self) -> list[int]:
        """Exit statuses of all runs, in the order of their start."""
        statuses = json.loads(self._ask("wait"))
        started, self._started = self._started, []
        return [statuses[pid] for pid in started]

    def stop(self) -> None:
        """End the process; no run is left by now, or it is killed."""
        for pid in self._started:
            os.killpg(int(pid), signal.SIGKILL)
        self._process.communicate()

    def _ask(self, request: Any) -> str:
        assert self._process.stdin is not None and self._process.stdout is not None
        print(json.dumps(request), file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        assert answer, "the zygote ended"
        return answer


@pytest.fixture(scope="session", params=["installed", "2.2.1"])
def zygote(request: pytest.FixtureRequest) -> Iterator[Zygote]:
    """Forks runs with the installed Lightning, and with the oldest that an upstream pins."""
    folder = ROOT / ".cache" / f"lightning-{request.param}"
    if request.param != "installed" and not folder.is_dir():
        pytest.skip(f"{folder} is absent; 'make .cache/{folder.name}' installs it")
    process = Zygote(None if request.param == "installed" else folder)
    yield process
    process.stop()


@pytest.fixture
def toy(tmp_path: Path, zygote: Zygote) -> Callable[..., ToyRun]:
    """Makes runs of the toy trainer: ``toy(name, **options)``."""

    def make(name: str = "run", **options: Any) -> ToyRun:
        return ToyRun(tmp_path / name, zygote, **options)

    return make
