"""A real Slurm for tests: one dev cluster for each pytest worker, as new for each test."""

from __future__ import annotations

import fcntl
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from slurm.devcluster.cluster import Cluster
from slurm.devcluster.config import ClusterConfig
from slurm.devcluster.daemons import unmet_requirement
from tests.project import Project

StartCluster = Callable[..., Cluster]

# Time to save for runs of several processes on a busy machine; who is faster does not wait for it.
PATIENT = {"grace_seconds": 40, "kill_wait_seconds": 30}


@pytest.fixture(scope="session")
def worker_cluster() -> Iterator[Cluster]:
    cluster = _start(ClusterConfig(**PATIENT))
    yield cluster
    cluster.stop()


@pytest.fixture
def cluster(worker_cluster: Cluster) -> Iterator[Cluster]:
    """Four idle nodes with four GPUs each, for this test alone."""
    yield worker_cluster
    worker_cluster.reset()


@pytest.fixture
def start_cluster() -> Iterator[StartCluster]:
    """Start a cluster with settings of its own: start_cluster(nodes=2, …)."""
    started = []

    def start(**settings: Any) -> Cluster:
        started.append(_start(ClusterConfig(**settings)))
        return started[-1]

    yield start
    for cluster in started:
        if cluster.place.folder.exists():
            cluster.stop()


@pytest.fixture
def project(
    cluster: Cluster, new_project: Callable[..., Project], monkeypatch: pytest.MonkeyPatch
) -> Project:
    """A project whose commands talk to this test's cluster."""
    for name, value in cluster.env.items():
        monkeypatch.setenv(name, value)
    return new_project("project", cluster="devcluster")


@pytest.fixture(scope="session")
def straight(
    prepared: Path, tmp_path_factory: pytest.TempPathFactory, worker_id: str
) -> Callable[..., Project]:
    """Runs of these sizes and of this many processes, without Slurm and without a stop.

    They are shared by the pytest workers, since each takes a while.
    """
    own = tmp_path_factory.getbasetemp()
    shared = own if worker_id == "master" else own.parent

    def run(processes: int, sizes: str) -> Project:
        root = shared / f"straight-{processes}-{sizes}"
        with (shared / f"{root.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            project = Project(root)
            if not project.output.completed.exists():
                shutil.rmtree(root, ignore_errors=True)
                shutil.copytree(prepared / "data", root / "data")
                done = project.submit("--gpus-per-node", str(processes), "--follow", sizes=sizes)
                assert done.returncode == 0, done.stdout + done.stderr
        return project

    return run


@pytest.fixture
def submit(tmp_path: Path) -> Callable[..., str]:
    """Submit a batch script's text with more sbatch options; returns the job id."""

    def sbatch(cluster: Cluster, script: str, *options: str) -> str:
        path = tmp_path / "script.sh"
        path.write_text(f"#!/bin/bash\n{script}\n", encoding="utf-8")
        common = ("--parsable", f"--chdir={tmp_path}", "--output=%j.log", "--open-mode=append")
        return cluster.run("sbatch", *common, *options, str(path)).strip()

    return sbatch


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder whose path leaves room for the names of sockets, as tmp_path does not."""
    with tempfile.TemporaryDirectory(prefix="slurm-") as folder:
        yield Path(folder)


def _start(config: ClusterConfig) -> Cluster:
    unmet = unmet_requirement(config)
    if unmet is not None:
        pytest.skip(unmet)
    return Cluster.start(Path(tempfile.mkdtemp(prefix="slurm-")), config)
