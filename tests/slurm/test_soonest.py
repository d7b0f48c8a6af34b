"""What a real Slurm expects of each exact geometry."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any

import pytest

from slurm.devcluster.cluster import Cluster
from tests.project import Project

pytestmark = [pytest.mark.slurm, pytest.mark.slow]


def when(project: Project) -> dict[tuple[int, int], dict[str, Any]]:
    done = project.dlbhpc(
        "plan", "--recipe", "reference_mdlm", "--cluster", "devcluster", "--when", "--json"
    )
    assert done.returncode == 0, done.stderr
    expected = json.loads(done.stdout)["expected"]
    return {(item["nodes"], item["gpus_per_node"]): item for item in expected}


def test_the_start_is_slurms_own_and_what_the_cluster_lacks_is_refused(
    cluster: Cluster, project: Project
) -> None:
    idle = when(project)
    assert idle[(4, 2)]["start"] is not None
    assert "samples in batches" in idle[(4, 4)]["refusal"], "no whole steps on 16 GPUs"
    assert "not available" in idle[(8, 1)]["refusal"]
    # Three nodes are taken for a quarter of an hour: what needs more than one waits for them.
    cluster.run(
        "sbatch", "--partition=high", "--nodes=3", "--exclusive", "--time=15",
        "--output=/dev/null", "--wrap=sleep 60",
    )  # fmt: skip
    busy = when(project)
    one, two = (datetime.fromisoformat(busy[shape]["start"]) for shape in ((1, 4), (2, 4)))
    assert two - one > timedelta(minutes=10)
    taken = project.submit("--soonest", "--dry-run", sizes="steps=10,batch=8")
    assert taken.returncode == 0, taken.stderr
    assert "soonest: 1 x 4 GPUs" in taken.stderr
    assert "#SBATCH --gpus-per-node=4\n" in taken.stdout
