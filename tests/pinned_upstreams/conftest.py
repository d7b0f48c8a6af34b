"""The upstreams' own code, where a checkout is at hand, launched as a user launches a trial."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dlbhpc.layout import CHECKOUT
from tests.project import Project

CHECKOUTS = Path(os.environ.get("DLBHPC_UPSTREAMS") or CHECKOUT / "upstreams")
PACKAGES = CHECKOUT / ".cache" / "upstream-packages"
SHIMS = CHECKOUT / "tests" / "shims"
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
"""More threads, on cores that others use too, wait for each other."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every test of this folder runs an upstream's code, and takes long."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.upstream)
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def upstream_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An interpreter with this one's packages, those of the upstreams, and the shims.

    The product starts the upstreams with the interpreter that runs it, and lets no Python settings
    of the caller's in: what a test wants in there has to be part of the interpreter.
    """
    pytest.importorskip("torch", reason="trains")
    if not PACKAGES.is_dir():
        pytest.skip(f"{PACKAGES} is absent; 'make .cache/{PACKAGES.name}' installs it")
    folder = tmp_path_factory.mktemp("python")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    paths = [PACKAGES, sysconfig.get_paths()["purelib"], SHIMS]
    (site / "all.pth").write_text("".join(f"{path}\n" for path in paths) + "import startup\n")
    return str(folder / "bin" / "python")


@pytest.fixture(scope="session")
def trial_data(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Prepares a dataset of trials, once; returns the ``data`` folder it lies in."""
    root = tmp_path_factory.mktemp("trial-data")
    prepared = set()

    def prepare(dataset: str) -> Path:
        if dataset not in prepared:
            done = Project(root).dlbhpc("data", "prepare", dataset, "--trial")
            assert done.returncode == 0, done.stderr
            prepared.add(dataset)
        return root / "data"

    return prepare


Maker = Callable[..., Project]


def _maker(python: str, data: Callable[[str], Path], folder: Path) -> Iterator[Maker]:
    runs: list[Project] = []

    def make(recipe: str, *upstreams: str, dataset: str = "lm1b") -> Project:
        root = folder / f"project-{len(runs)}"
        (root / "upstreams").mkdir(parents=True)
        for upstream in upstreams:
            source = CHECKOUTS / upstream
            if not source.is_dir():
                pytest.skip(f"there is no checkout {source} (set DLBHPC_UPSTREAMS to its folder)")
            (root / "upstreams" / upstream).symlink_to(source.resolve())
        shutil.copytree(data(dataset), root / "data", symlinks=True)
        runs.append(Project(root, "local", recipe, dataset, python, environment=ONE_THREAD))
        return runs[-1]

    yield make
    for run in runs:
        run.kill_everything()


@pytest.fixture
def new_run(
    upstream_python: str, trial_data: Callable[[str], Path], tmp_path: Path
) -> Iterator[Maker]:
    """Makes project roots with trial data and a checkout: ``new_run(recipe, upstream)``."""
    yield from _maker(upstream_python, trial_data, tmp_path)


@pytest.fixture(scope="module")
def module_run(
    upstream_python: str,
    trial_data: Callable[[str], Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Maker]:
    """The same, for what several tests look at."""
    yield from _maker(upstream_python, trial_data, tmp_path_factory.mktemp("runs"))


def at_neighbour(run: Project, upstream: str, folder: Path) -> Project:
    """The run with a checkout of this project that is pinned to the upstream's commit at hand.

    For an upstream whose pinned commit is not to be had.
    """
    for part in ("dlbhpc", "templates", "slurm"):
        shutil.copytree(
            CHECKOUT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__")
        )
    pin = folder / "dlbhpc" / "conf" / "upstream" / f"{upstream}.yaml"
    head = subprocess.run(
        ["git", "-C", str(CHECKOUTS / upstream), "rev-parse", "HEAD"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    pin.write_text(re.sub(r"(?m)^commit: .*$", f"commit: {head}", pin.read_text()))
    return replace(run, checkout=folder)


def interrupt_twice(run: Project, first: int, second: int, **options: Any) -> None:
    """Preempt in attempt 1, kill attempt 2, and finish with attempt 3."""
    run.start(**options)
    run.freeze_at(attempt=1, step=first)
    assert run.dlbhpc("preempt", str(run.output.folder)).returncode == 0
    run.freeze_at(attempt=2, step=second)
    run.kill_everything()
    finish(run, **options)
    attempts = run.report()["attempts"]
    ends = [attempt["end"] for attempt in attempts]
    assert ends == ["preempted", "interrupted", "completed"], tail(run)
    preempted, killed, last = attempts
    assert killed["from_step"] == preempted["to_step"] >= first, tail(run)
    # What was killed had told steps that it had not saved yet.
    assert preempted["to_step"] <= last["from_step"] <= killed["to_step"], tail(run)


def finish(run: Project, *flags: str, **options: Any) -> None:
    """Submit and wait; the run must be complete."""
    done = run.submit(*flags, "--follow", **options)
    assert done.returncode == 0, done.stdout + done.stderr + tail(run)
    assert run.report()["state"] == "completed", tail(run)


def log(run: Project) -> str:
    """What the job printed."""
    return "".join(path.read_text(errors="replace") for path in run.output.job.glob("*.out"))


def tail(run: Project) -> str:
    return log(run)[-6000:]
