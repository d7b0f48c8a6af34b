"""A real Slurm for tests: one dev cluster for each pytest worker, as new for each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slurm.devcluster.cluster import Cluster
from slurm.devcluster.config import ClusterConfig
from slurm.devcluster.daemons import unmet_requirement

StartCluster = Callable[..., Cluster]


@pytest.fixture(scope="session")
def worker_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    _skip_unless_possible(ClusterConfig())
    cluster = Cluster.start(tmp_path_factory.mktemp("slurm"))
    yield cluster
    cluster.stop()


@pytest.fixture
def cluster(worker_cluster: Cluster) -> Iterator[Cluster]:
    """Four idle nodes with four GPUs each, for this test alone."""
    yield worker_cluster
    worker_cluster.reset()


@pytest.fixture
def start_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartCluster]:
    """Start a cluster with settings of its own: start_cluster(nodes=2, …)."""
    started = []

    def start(**settings: int | bool) -> Cluster:
        config = ClusterConfig(**settings)
        _skip_unless_possible(config)
        cluster = Cluster.start(tmp_path_factory.mktemp("slurm"), config)
        started.append(cluster)
        return cluster

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


def _skip_unless_possible(config: ClusterConfig) -> None:
    unmet = unmet_requirement(config)
    if unmet is not None:
        pytest.skip(unmet)
