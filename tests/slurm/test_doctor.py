"""What `doctor` and `status` say of a real Slurm."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dlbhpc.cli.main import main
from slurm.devcluster.cluster import Cluster

pytestmark = pytest.mark.slurm

Doctor = Callable[..., tuple[int, dict[str, dict[str, Any]]]]


@pytest.fixture
def doctor(
    cluster: Cluster,
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Doctor:
    for name, value in cluster.env.items():
        monkeypatch.setenv(name, value)

    def run(*flags: str) -> tuple[int, dict[str, dict[str, Any]]]:
        command = ["doctor", "--json", "--root", str(root), "--cluster", "devcluster"]
        status = main([*command, *flags])
        return status, {row["check"]: row for row in json.loads(capsys.readouterr().out)}

    return run


def test_a_partition_that_requeues_with_grace_loses_nothing(doctor: Doctor) -> None:
    status, found = doctor("--partition", "requeue")
    assert status == 0
    assert "PreemptMode=REQUEUE" in found["preemption"]["found"]
    assert "GraceTime at preemption (partition requeue) 40 s" in found["time to save"]["found"]
    assert found["munge"]["level"] == "ok"
    assert "4 of 4 nodes" in found["gpus"]["found"]


@pytest.mark.parametrize(
    ("partition", "problems"),
    [("requeue-now", {"time to save"}), ("cancel-now", {"preemption", "time to save"})],
)
def test_a_partition_without_grace_loses_work(
    doctor: Doctor, partition: str, problems: set[str]
) -> None:
    status, found = doctor("--partition", partition)
    assert status == 1
    assert {name for name, row in found.items() if row["level"] == "problem"} == problems


def test_a_job_on_two_nodes_proves_that_the_folder_is_shared(doctor: Doctor, root: Path) -> None:
    before = sorted(root.rglob("*"))
    status, found = doctor("--run-job")
    assert status == 0
    assert "2 nodes read and wrote it" in found["shared folder"]["found"]
    assert sorted(root.rglob("*")) == before


def test_a_controller_that_is_away_is_a_problem_and_no_traceback(
    doctor: Doctor, cluster: Cluster
) -> None:
    cluster.kill_controller()
    status, found = doctor()
    assert (status, found["controller"]["level"]) == (1, "problem")
