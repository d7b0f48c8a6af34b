"""One run has one job on a real Slurm, whoever submits it, and whatever dies meanwhile."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dlbhpc.layout import CHECKOUT
from slurm.devcluster.cluster import Cluster
from tests.project import Project, eventually

pytestmark = [pytest.mark.slurm, pytest.mark.slow]
pytest.importorskip("torch", reason="trains a real model")

SIZES = "steps=20,batch=8"


def job_ids(cluster: Cluster) -> list[str]:
    return cluster.run("squeue", "--noheader", "--format=%A").split()


def test_two_submissions_at_the_same_instant_make_one_job(
    cluster: Cluster, project: Project
) -> None:
    command = [sys.executable, "-m", "dlbhpc", "submit", "--recipe", "reference_mdlm"]
    command += [f"--trial={SIZES}", "--cluster", "devcluster", "--gpus-per-node", "1"]
    command += ["--root", str(project.root)]
    both = [
        subprocess.Popen(command, cwd=CHECKOUT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for _ in range(2)
    ]
    words = [process.communicate()[1].decode() for process in both]
    assert sorted(process.returncode for process in both) == [0, 2]
    assert any("still alive" in text for text in words)
    assert len(job_ids(cluster)) == 1


def test_a_submission_killed_before_it_knew_its_job_is_found_by_its_tag(
    cluster: Cluster, project: Project, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """sbatch makes the job and dies before it can say so; a second job must not be made."""
    real = cluster.run("which", "sbatch").strip()
    stub = tmp_path / "bin" / "sbatch"
    stub.parent.mkdir()
    stub.write_text(f'#!/bin/bash\n{real} --hold "$@" >/dev/null\nkill -KILL $$\n')
    stub.chmod(0o755)
    path = os.environ["PATH"]
    monkeypatch.setenv("PATH", f"{stub.parent}:{path}")
    first = project.submit("--gpus-per-node", "1", sizes=SIZES)
    assert first.returncode == 0, first.stderr
    (job,) = job_ids(cluster)
    assert f"as {job}" in first.stdout
    monkeypatch.setenv("PATH", path)
    second = project.submit("--gpus-per-node", "1", sizes=SIZES)
    assert second.returncode == 2
    assert f"job {job}" in second.stderr
    assert job_ids(cluster) == [job]


def test_a_held_job_is_shown_and_released(cluster: Cluster, project: Project) -> None:
    project.start("--gpus-per-node", "1", "--sbatch-line=--hold", sizes=SIZES)
    (shown,) = json.loads(project.dlbhpc("status", "--json").stdout)
    assert shown["state"] == "held"
    released = project.dlbhpc("requeue", str(project.output.folder))
    assert released.returncode == 0, released.stderr
    eventually(lambda: project.output.attempt(1).exists(), "the job runs")
