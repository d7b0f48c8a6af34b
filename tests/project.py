"""Whole runs: real submissions of the bundled recipe at trial size, as the tests see them."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dlbhpc.inputs.checkpoint import Placeholder
from dlbhpc.layout import CHECKOUT, Layout, OutputLayout
from dlbhpc.run.history import read_attempts, read_events, read_progress
from dlbhpc.scheduler.processes import marked, send
from dlbhpc.scheduler.submission import live_lease

DEADLINE_SECONDS = 480


def eventually(condition: Callable[[], object], what: str) -> None:
    """Wait until the condition holds; fails with `what` after a generous time.

    A look that is dear, as one that asks Slurm, is taken less often: what is waited for needs the
    machine more.
    """
    deadline = time.monotonic() + DEADLINE_SECONDS
    looked = time.monotonic()
    while not condition():
        now = time.monotonic()
        assert now < deadline, f"waited in vain until {what}"
        time.sleep(min(max(0.02, 5 * (now - looked)), 0.5))
        looked = time.monotonic()


@dataclass(frozen=True)
class Project:
    """A project root with prepared data, and the command line on it."""

    root: Path
    cluster: str = "local"
    recipe: str = "reference_mdlm"
    dataset: str = "pydoc"
    python: str = sys.executable
    checkout: Path = CHECKOUT
    environment: Mapping[str, str] = field(default_factory=dict)
    name: str | None = None
    """Of the run's folder beside the default one."""

    @property
    def output(self) -> OutputLayout:
        layout = Layout.at(self.root)
        if self.name is not None:
            return OutputLayout(layout.trials / self.dataset / self.name)
        return OutputLayout(layout.run_folder(self.dataset, self.recipe, trial=True))

    def dlbhpc(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.python, "-m", "dlbhpc", *arguments, "--root", str(self.root)],
            capture_output=True,
            text=True,
            cwd=self.checkout,
            env={**os.environ, **self.environment},
            timeout=DEADLINE_SECONDS,
        )

    def submit(self, *flags: str, sizes: str = "steps=20") -> subprocess.CompletedProcess[str]:
        trial = ["--recipe", self.recipe, f"--trial={sizes}", "--cluster", self.cluster]
        where = ["--output", str(self.output.folder)] if self.name is not None else []
        return self.dlbhpc("submit", *trial, "--dataset", self.dataset, *where, *flags)

    def start(self, *flags: str, sizes: str = "steps=20") -> None:
        """Submit, which returns when the job has begun to run."""
        done = self.submit(*flags, sizes=sizes)
        assert done.returncode == 0, done.stderr

    def processes(self) -> list[int]:
        """Every process of the project's jobs, the embedded scheduler's own included."""
        marker = str(self.output.job).encode()
        found = []
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit():
                try:
                    environment = (folder / "environ").read_bytes()
                except OSError:
                    continue
                command = b"SUBMITIT_LOCAL_COMMAND="
                if any(v.startswith(command) and marker in v for v in environment.split(b"\0")):
                    found.append(int(folder.name))
        return found

    def training(self, attempt: int) -> list[int]:
        """The training processes of one attempt."""
        return marked("DLBHPC_ATTEMPT_FILE", str(self.output.attempt(attempt) / "attempt.json"))

    def freeze_at(self, attempt: int, step: int) -> None:
        """Stop the training as soon as it made this step, for what must come before its end.

        What asks it to stop (as Slurm does) or kills it continues it first.
        """
        eventually(lambda: self.progress(attempt) >= step, f"step {step} is made")
        send(self.training(attempt), signal.SIGSTOP)

    def kill_everything(self) -> None:
        """SIGKILL to the whole tree, as when the machine goes down."""
        while pids := self.processes():
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass

    def wait_for_end(self) -> None:
        """Until no job owns the run any more."""
        eventually(lambda: live_lease(self.output) is None, "the job has ended")

    def progress(self, attempt: int) -> int:
        """The step that an attempt has told or published; 0 before its first."""
        folder = self.output.attempt(attempt)
        events = (event.get("step", 0) for event in read_events(folder))
        return max(read_progress(folder).get("step", 0), *events, 0)

    def told(self) -> set[Path]:
        """The attempts that have made a step."""
        return {path.parent for path in self.output.attempts.glob("*/progress.json")}

    def report(self) -> dict[str, Any]:
        done = self.dlbhpc("report", str(self.output.folder), "--json")
        assert done.returncode == 0, done.stderr
        report: dict[str, Any] = json.loads(done.stdout)
        return report

    def ends(self) -> list[str | None]:
        """Why each attempt ended, oldest first."""
        return [attempt.reason for attempt in read_attempts(self.output)]

    def wait_for_attempt_to_end(self, number: int) -> None:
        """Until an attempt's own last word is written."""
        path = self.output.attempt(number) / "end.json"
        eventually(path.exists, f"attempt {number} has said why it ended")

    @staticmethod
    def load(path: Path) -> dict[str, Any]:
        import torch

        content: dict[str, Any] = torch.load(
            path, weights_only=False, pickle_module=_OnlyWhatIsHere
        )
        return content

    def state(self) -> dict[str, Any]:
        """Everything that the last optimizer step left: weights, optimizer, EMA."""
        selected = json.loads(self.output.completed.read_text())["checkpoint"]
        content = self.load(self.output.folder / selected)
        kept = ("state_dict", "optimizer_states", "ema", "global_step")
        return {key: content[key] for key in kept}


class _OnlyWhatIsHere:
    """A pickle module for checkpoints that hold objects of packages that are not installed."""

    class Unpickler(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            try:
                return super().find_class(module, name)
            except ImportError:
                return Placeholder


def kill_job(job_id: str) -> None:
    """SIGKILL to everything of a job of Slurm's but Slurm: nothing of ours is left to say a word.

    The batch shell first, which is the oldest: it must not see its tasks end.
    """
    send(sorted(marked("SLURM_JOB_ID", job_id)), signal.SIGKILL)


def identical(one: Any, other: Any) -> bool:
    """Bit for bit, however deep."""
    import torch

    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(identical(one[k], other[k]) for k in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(identical, one, other))
    return bool(one == other)
