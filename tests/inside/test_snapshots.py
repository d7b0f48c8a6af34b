"""rdlm's stand-in: saves in place, has no hooks, and exits 0 whatever happens (hazards 3, 29)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dlbhpc.exit_status import FENCED, REQUEUE
from dlbhpc.layout import ADAPTERS, CHECKOUT
from dlbhpc.steps import begin_attempt, list_steps, recover
from tests.project import eventually

torch = pytest.importorskip("torch")

PROGRAM = """
import os, signal, sys, time
import types
import torch

options = dict(word.split("=", 1) for word in sys.argv[1:])
output, last = options["output"], int(options["n_iters"])
meta = os.path.join(output, "checkpoints-meta", "checkpoint.pth")
os.makedirs(os.path.dirname(meta), exist_ok=True)
os.makedirs(os.path.join(output, "checkpoints"), exist_ok=True)

def wait_for(name):
    while not os.path.exists(os.path.join(output, name)):
        time.sleep(0.01)

step = torch.load(meta, weights_only=False)["step"] if os.path.exists(meta) else 0
print("begins at", step, flush=True)
try:
    while step < last + 1:
        before, step = step, step + 1
        state = {"step": step, "model": {"w": torch.full((4,), float(step))}}
        state["config"] = types.SimpleNamespace()
        if before % 4 == 0:
            torch.save(state, meta)
            if options.get("truncate") == str(step):
                with open(meta, "r+b") as file:
                    file.truncate(os.path.getsize(meta) // 2)
            wait_for(f"go-{step}")
        if options.get("raise") == str(step):
            raise RuntimeError("a rank is lost")
        if options.get("die") == str(step):
            os.kill(os.getpid(), signal.SIGKILL)
        if before > 0 and before % 8 == 0 or before == last:
            torch.save(state, os.path.join(output, "checkpoints", f"checkpoint_{before // 8}.pth"))
except Exception as error:
    print("critical:", error, flush=True)
"""


class Rdlm:
    """One run of the stand-in through the adapter; it goes on at each snapshot when told to."""

    def __init__(self, folder: Path, n_iters: int = 12) -> None:
        self.output = folder / "output"
        self.steps = self.output / "steps"
        self.checkout = folder / "rdlm"
        self.n_iters = n_iters
        self.steps.mkdir(parents=True)
        self.checkout.mkdir()
        (self.checkout / "main.py").write_text(PROGRAM)

    def start(self, **options: Any) -> subprocess.Popen[str]:
        attempt = begin_attempt(self.steps)
        self.folder = self.output / "attempts" / str(attempt)
        self.folder.mkdir(parents=True)
        contract = {"objective": "stand-in"}
        recovery = recover(self.steps, contract=contract, world=1)
        placed = self.output / "checkpoints" / "last.ckpt"
        placed.parent.mkdir(exist_ok=True)
        if recovery.path is not None:
            placed.write_bytes((recovery.path / "training_state.pt").read_bytes())
        content = {
            "attempt": attempt,
            "output": str(self.output),
            "steps_dir": str(self.steps),
            "stop_file": str(self.folder / "stop"),
            "progress_file": str(self.folder / "progress.json"),
            "events_file": str(self.folder / "events.jsonl"),
            "contract": contract,
            "nodes": 1,
            "gpus_per_node": 1,
            "total_steps": self.n_iters + 1,
            "milestones": [],
            "save_every_seconds": 60,
            "keep_last": 2,
            "export_bf16": False,
            "resumed_from": recovery.record.step if recovery.record is not None else None,
        }
        (self.folder / "attempt.json").write_text(json.dumps(content))
        words = [f"{name}={value}" for name, value in options.items()]
        return subprocess.Popen(
            [
                sys.executable,
                str(ADAPTERS / "watch_rdlm.py"),
                str(self.checkout / "main.py"),
                f"output={self.output}",
                f"n_iters={self.n_iters}",
                *words,
            ],
            cwd=self.checkout,
            env={
                **os.environ,
                "PYTHONPATH": str(CHECKOUT),
                "DLBHPC_ATTEMPT_FILE": str(self.folder / "attempt.json"),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def go(self, *steps: int) -> None:
        """Let the program go on behind its snapshots of these steps."""
        for step in steps:
            (self.output / f"go-{step}").touch()

    def events(self) -> list[dict[str, Any]]:
        path = self.folder / "events.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def wait_for(self, event: str, process: subprocess.Popen[str], **fields: Any) -> None:
        def told() -> bool:
            assert process.poll() is None, process.communicate()[0]
            return any(e["event"] == event and fields.items() <= e.items() for e in self.events())

        eventually(told, f"{event} {fields} is told")

    def published(self) -> list[int]:
        return sorted(record.step for record in list_steps(self.steps))


@pytest.fixture
def rdlm(tmp_path: Path) -> Rdlm:
    return Rdlm(tmp_path)


def ended(process: subprocess.Popen[str]) -> int:
    out, _ = process.communicate(timeout=200)
    print(out)
    return process.returncode


def test_its_snapshots_become_step_directories_and_the_last_step_is_success(rdlm: Rdlm) -> None:
    process = rdlm.start()
    rdlm.wait_for("saved", process, step=1)
    rdlm.go(1)
    rdlm.wait_for("saved", process, step=5)
    rdlm.go(5, 9, 13)
    assert ended(process) == 0
    assert rdlm.published()[-1] == 13 == rdlm.n_iters + 1
    state = torch.load(rdlm.steps / "step-00000013" / "training_state.pt", weights_only=False)
    assert state["step"] == 13 and state["model"]["w"][0] == 13


@pytest.mark.parametrize("channel", ["file", "TERM"])
def test_asked_to_stop_it_keeps_the_newest_snapshot_and_resumes_from_it(
    rdlm: Rdlm, channel: str
) -> None:
    process = rdlm.start()
    rdlm.go(1)
    rdlm.wait_for("saved", process, step=5)
    if channel == "file":
        (rdlm.folder / "stop").touch()
    else:
        process.send_signal(signal.SIGTERM)
    assert ended(process) == REQUEUE
    assert rdlm.published()[-1] == 5
    process = rdlm.start()
    rdlm.go(9, 13)
    out, _ = process.communicate(timeout=200)
    assert process.returncode == 0, out
    assert "begins at 5" in out


def test_hazard_3_its_exit_status_0_on_a_failure_is_not_believed(rdlm: Rdlm) -> None:
    process = rdlm.start(**{"raise": 6})
    rdlm.go(1)
    rdlm.wait_for("saved", process, step=5)
    rdlm.go(5)
    assert ended(process) == 1
    assert rdlm.published()[-1] == 5


def test_a_program_that_a_signal_ended_keeps_its_status(rdlm: Rdlm) -> None:
    rdlm.go(1, 5)
    assert ended(rdlm.start(die=6)) == 128 + signal.SIGKILL


def test_hazard_29_a_torn_snapshot_is_not_published_and_does_not_keep_it_from_starting(
    rdlm: Rdlm,
) -> None:
    process = rdlm.start(truncate=5)
    rdlm.wait_for("saved", process, step=1)
    rdlm.go(1)
    rdlm.wait_for("snapshot_not_whole", process)
    process.send_signal(signal.SIGTERM)
    assert ended(process) == REQUEUE
    assert rdlm.published() == [1]
    process = rdlm.start()
    rdlm.go(5, 9, 13)
    out, _ = process.communicate(timeout=200)
    assert process.returncode == 0, out
    assert "begins at 1" in out


def test_hazard_29_a_kill_before_the_final_checkpoint_loses_nothing(rdlm: Rdlm) -> None:
    """The snapshot of the last step is the last state, whether the final file follows or not."""
    rdlm.go(1, 5, 9, 13)
    assert ended(rdlm.start(die=13)) == 0
    assert rdlm.published()[-1] == 13
    assert not (rdlm.output / "checkpoints" / "checkpoint_1.pth").samefile(
        rdlm.steps / "step-00000013" / "training_state.pt"
    )


def test_a_snapshot_of_unknown_origin_is_not_resumed_from(rdlm: Rdlm) -> None:
    meta = rdlm.output / "checkpoints-meta" / "checkpoint.pth"
    meta.parent.mkdir(parents=True)
    torch.save({"step": 11}, meta)
    rdlm.go(1, 5, 9, 13)
    out, _ = (process := rdlm.start()).communicate(timeout=200)
    assert process.returncode == 0, out
    assert "begins at 0" in out


def test_a_newer_attempt_fences_the_watcher(rdlm: Rdlm) -> None:
    process = rdlm.start()
    rdlm.wait_for("saved", process, step=1)
    begin_attempt(rdlm.steps)
    rdlm.go(1)
    assert ended(process) == FENCED
    assert rdlm.published() == [1]
