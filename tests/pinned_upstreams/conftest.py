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

from dlbhpc.layout import CHECKOUT, Layout
from tests.project import Project, eventually

CHECKOUTS = Path(os.environ.get("DLBHPC_UPSTREAMS") or CHECKOUT / "upstreams")
PACKAGES = CHECKOUT / ".cache" / "upstream-packages"
OLD_LIGHTNING = CHECKOUT / ".cache" / "lightning-2.2.1"
"""What mdlm, duo, sdtt and di4c pin."""
SHIMS = CHECKOUT / "tests" / "shims"
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
"""More threads, on cores that others use too, wait for each other."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every test of this folder runs an upstream's code, and takes long."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.upstream)
            item.add_marker(pytest.mark.slow)


def _interpreter(folder: Path, *first: Path) -> str:
    """An interpreter with this one's packages, those of the upstreams, and the shims.

    The product starts the upstreams with the interpreter that runs it, and lets no Python settings
    of the caller's in: what a test wants in there has to be part of the interpreter.
    """
    pytest.importorskip("torch", reason="trains")
    for path in (PACKAGES, *first):
        if not path.is_dir():
            pytest.skip(f"{path} is absent; 'make .cache/{path.name}' installs it")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    paths = [*first, PACKAGES, sysconfig.get_paths()["purelib"], SHIMS]
    (site / "all.pth").write_text("".join(f"{path}\n" for path in paths) + "import startup\n")
    return str(folder / "bin" / "python")


@pytest.fixture(scope="session")
def upstream_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    return _interpreter(tmp_path_factory.mktemp("python"))


@pytest.fixture(scope="session")
def old_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """With the Lightning that four upstreams pin."""
    return _interpreter(tmp_path_factory.mktemp("old-python"), OLD_LIGHTNING)


@pytest.fixture(scope="session")
def trials(upstream_python: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """A project root with small lm1b data and the checkouts at hand; its run is mdlm's."""
    root = tmp_path_factory.mktemp("trials")
    (root / "upstreams").mkdir()
    for source in CHECKOUTS.glob("*/.git"):
        (root / "upstreams" / source.parent.name).symlink_to(source.parent.resolve())
    project = Project(root, "local", "mdlm", "lm1b", upstream_python, environment=ONE_THREAD)
    done = project.dlbhpc("data", "prepare", "lm1b", "--trial")
    assert done.returncode == 0, done.stderr
    yield project
    for output in Layout.at(root).trials.glob("*/*"):
        replace(project, name=output.name).kill_everything()


def require_checkout(upstream: str) -> None:
    if not (CHECKOUTS / upstream / ".git").exists():
        pytest.skip(f"there is no checkout of {upstream} in {CHECKOUTS} (set DLBHPC_UPSTREAMS)")


@pytest.fixture(scope="session")
def at_neighbours(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Makes a copy of this project that is pinned to the commit at hand of an upstream.

    For flm and sdtt, whose pinned commits are not to be had: as it is, the project rightly refuses
    any other.
    """

    def copy(upstream: str) -> Path:
        folder = tmp_path_factory.mktemp(f"pinned-to-another-{upstream}")
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
        return folder

    return copy


def frozen_after(run: Project, *updates: int) -> Project:
    """The run with attempts that freeze behind so many updates: 3, 2 for the first and second."""
    numbers = ",".join(map(str, updates))
    return replace(run, environment={**run.environment, "SHIM_FREEZE": numbers})


def wait_until_frozen(run: Project, attempt: int, ranks: int = 1) -> None:
    """Until every rank of an attempt has stopped behind its updates; the attempt may not end."""
    end = run.output.attempt(attempt) / "end.json"
    eventually(
        lambda: end.exists() or sum(map(_is_stopped, run.training(attempt))) == ranks,
        f"attempt {attempt} is frozen",
    )
    assert not end.exists(), tail(run)


def _is_stopped(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return False
    # The command's name stands in parentheses and may hold anything, blanks included.
    return status.rpartition(")")[2].split()[0] == "T"


def finish(run: Project, *flags: str, sizes: str) -> None:
    """Submit and wait; the run must be complete."""
    done = run.submit(*flags, "--follow", sizes=sizes)
    assert done.returncode == 0, done.stdout + done.stderr + tail(run)
    assert run.report()["state"] == "completed", tail(run)


def log(run: Project) -> str:
    """What the job printed."""
    return "".join(path.read_text(errors="replace") for path in run.output.job.glob("*.out"))


def tail(run: Project) -> str:
    return log(run)[-6000:]


def last_state(run: Project) -> dict[str, Any]:
    """What the last step directory holds of the optimization, a kept teacher included."""
    newest = max(run.output.steps.glob("step-*"))
    content = run.load(newest / "training_state.pt")
    kept = {key: content[key] for key in ("state_dict", "optimizer_states", "ema", "global_step")}
    return {**kept, "shared": content["dlbhpc"]["shared"]}
