"""Whole runs on this machine: real submissions of the bundled recipe at trial size."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dlbhpc.layout import CHECKOUT, Layout, OutputLayout
from dlbhpc.scheduler.submission import live_lease

DEADLINE_SECONDS = 240


def eventually(condition: Callable[[], object], what: str) -> None:
    """Wait until the condition holds; fails with `what` after a generous time."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain until {what}"
        time.sleep(0.02)


@dataclass(frozen=True)
class Project:
    """A project root with prepared data, and the command line on it."""

    root: Path

    @property
    def output(self) -> OutputLayout:
        layout = Layout.at(self.root)
        return OutputLayout(layout.run_folder("pydoc", "reference_mdlm", trial=True))

    def dlbhpc(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "dlbhpc", *arguments, "--root", str(self.root)],
            capture_output=True,
            text=True,
            cwd=CHECKOUT,
            timeout=DEADLINE_SECONDS,
        )

    def submit(self, *flags: str, sizes: str = "steps=20") -> subprocess.CompletedProcess[str]:
        trial = ["--recipe", "reference_mdlm", f"--trial={sizes}", "--cluster", "local"]
        return self.dlbhpc("submit", *trial, *flags)

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

    def kill_everything(self) -> None:
        """SIGKILL to the whole tree, as when the machine goes down."""
        while pids := self.processes():
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass

    def wait_for_end(self) -> None:
        eventually(lambda: live_lease(self.output) is None, "the job has ended")

    def progress(self, attempt: int) -> int:
        """The step that an attempt has reached; 0 before its first."""
        try:
            path = self.output.attempt(attempt) / "progress.json"
            step: int = json.loads(path.read_text())["step"]
        except FileNotFoundError:
            return 0
        return step

    def report(self) -> dict[str, Any]:
        done = self.dlbhpc("report", str(self.output.folder), "--json")
        assert done.returncode == 0, done.stderr
        report: dict[str, Any] = json.loads(done.stdout)
        return report


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundled dataset, prepared once."""
    from dlbhpc.data import prepare_pydoc

    root = tmp_path_factory.mktemp("prepared")
    prepare_pydoc(root)
    return root


@pytest.fixture
def new_project(prepared: Path, tmp_path: Path) -> Iterator[Callable[[str], Project]]:
    """Makes project roots with the prepared data in them; their jobs are gone afterwards."""
    import shutil

    projects: list[Project] = []

    def make(name: str) -> Project:
        shutil.copytree(prepared / "data", tmp_path / name / "data")
        projects.append(Project(tmp_path / name))
        return projects[-1]

    yield make
    for project in projects:
        project.kill_everything()


@pytest.fixture
def project(new_project: Callable[[str], Project]) -> Project:
    return new_project("project")
