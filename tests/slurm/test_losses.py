"""Runs on a real Slurm live through the loss of a node and of the controller."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable

import pytest

from dlbhpc.run.history import read_events
from dlbhpc.scheduler.processes import send
from dlbhpc.steps import list_steps
from slurm.devcluster.cluster import Cluster
from tests.project import Project, eventually, identical

pytestmark = [pytest.mark.slurm, pytest.mark.slow]
pytest.importorskip("torch", reason="trains a real model")

SHAPE = ("--nodes", "2", "--gpus-per-node", "2")
SIZES = "steps=40,batch=8"
Straight = Callable[[int, str], Project]


@pytest.mark.parametrize(("nodes", "per_node"), [(1, 1), (2, 2)])
def test_a_lost_node_leaves_a_ghost_that_publishes_nothing(
    cluster: Cluster, project: Project, straight: Straight, nodes: int, per_node: int
) -> None:
    """slurmd dies on the batch host; its step daemons, batch script and ranks live on.

    On one node that is the whole attempt; of two nodes, Slurm ends the other one's ranks.
    """
    project.start("--nodes", str(nodes), "--gpus-per-node", str(per_node), sizes=SIZES)
    project.freeze_at(attempt=1, step=1)
    batch_host = cluster.run("squeue", "--noheader", "--format=%B").strip()
    cluster.kill_slurmd(batch_host)
    eventually(lambda: project.progress(2), "the second attempt trains on other nodes")
    ghost = project.training(1)
    assert len(ghost) >= per_node, "the ghost is still there"
    published = {record.step for record in list_steps(project.output.steps)}
    send(ghost, signal.SIGCONT)
    project.wait_for_end()
    eventually(lambda: not project.training(1), "the ghost has left")
    assert project.report()["state"] == "completed"
    assert project.ends() == ["node failure", "completed"]
    since = [r for r in list_steps(project.output.steps) if r.step not in published]
    assert since and {record.attempt for record in since} == {2}
    if nodes == 1:
        # All of its ranks are there, so that it came as far as trying to.
        events = read_events(project.output.attempt(1))
        assert any(event.get("outcome") == "FENCED" for event in events)
    else:
        assert identical(project.state(), straight(nodes * per_node, SIZES).state())


def test_while_the_controller_is_away_status_is_never_wrong_and_the_run_goes_on(
    cluster: Cluster, project: Project
) -> None:
    project.start(*SHAPE, sizes=SIZES)
    project.freeze_at(attempt=1, step=1)

    def status() -> str:
        (shown,) = json.loads(project.dlbhpc("status", "--json").stdout)
        return str(shown["state"])

    assert status() == "running"
    cluster.kill_controller()
    assert status() == "unknown"
    refused = project.submit(*SHAPE, sizes=SIZES)
    assert refused.returncode == 2
    before = project.progress(1)
    send(project.training(1), signal.SIGCONT)
    eventually(lambda: project.progress(1) > before, "it trains on without a controller")
    assert status() in ("unknown", "completed")
    cluster.start_controller()
    assert status() in ("running", "completing", "completed")
    project.wait_for_end()
    assert status() == "completed"
    assert project.ends() == ["completed"]
