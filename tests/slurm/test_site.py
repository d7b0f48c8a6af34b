"""A site's own profile, on a real Slurm from submission to the finished run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from slurm.devcluster.cluster import Cluster
from tests.project import Project

pytestmark = [pytest.mark.slurm, pytest.mark.slow]
pytest.importorskip("torch", reason="trains a real model")

SITE = """
defaults: [devcluster]
memory: 1601M
memory_option: mem-per-cpu
gpu_option: gres
prologue: ["set -eu", "ulimit -c 0"]
environment: {{NCCL_DEBUG: "it's $(touch canary)"}}
scratch: "{scratch}"
"""


def test_a_run_with_a_profile_of_its_project(
    cluster: Cluster,
    new_project: Callable[..., Project],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    for name, value in cluster.env.items():
        monkeypatch.setenv(name, value)
    scratch = tmp_path / "fast disk"
    scratch.mkdir()
    project = new_project("project", cluster="site")
    folder = project.root / "slurm" / "profiles"
    folder.mkdir(parents=True)
    (folder / "site.yaml").write_text(SITE.format(scratch=scratch))
    shape = ("--nodes", "2", "--gpus-per-node", "1", "--follow")
    done = project.submit(*shape, "--time", "20", "--cpus-per-task", "2", sizes="steps=3,batch=8")
    assert done.returncode == 0, done.stdout + done.stderr
    report = project.report()
    assert report["state"] == "completed"
    options = (project.output.job / "batch.sh").read_text()
    assert {
        "#SBATCH --gres=gpu:1",
        "#SBATCH --cpus-per-task=2",
        "#SBATCH --mem-per-cpu=801M",
        "#SBATCH --time=20",
    } <= set(options.splitlines())
    (log,) = project.output.job.glob("*_0_log.out")
    assert "CPUs" in log.read_text(), "the first task says how many it may use"
    assert list(scratch.iterdir()) == [], "the attempt has removed its folder"
    assert list(project.root.rglob("canary")) == []
