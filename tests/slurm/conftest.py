"""A real Slurm for tests: one dev cluster for each pytest worker, as new for each test."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from slurm.devcluster.cluster import Cluster
from slurm.devcluster.config import ClusterConfig
from slurm.devcluster.daemons import unmet_requirement

StartCluster = Callable[..., Cluster]


@pytest.fixture(scope="session")
def worker_cluster() -> Iterator[Cluster]:
    cluster = _start(ClusterConfig())
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
