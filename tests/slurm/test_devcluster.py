"""The dev cluster behaves as a site's Slurm does, and leaves nothing behind."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dlbhpc.errors import DlbhpcError
from dlbhpc.scheduler.processes import ProcessId
from slurm.devcluster.cluster import Cluster
from slurm.devcluster.config import PARTITIONS, ClusterConfig
from slurm.devcluster.daemons import processes_of_cluster, processes_of_jobs, unmet_requirement
from slurm.devcluster.wait import wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

Submit = Callable[..., str]
StartCluster = Callable[..., Cluster]

ALL_GPUS_OF_TWO_NODES = ("--nodes=2", "--ntasks-per-node=1", "--gpus-per-node=4")
CLI = [sys.executable, str(Path(__file__).parents[2] / "slurm" / "devcluster")]


def job(cluster: Cluster, job_id: str) -> dict[str, str]:
    """What `scontrol show job` says, by name."""
    words = cluster.run("scontrol", "--oneliner", "show", "job", job_id).split()
    return dict(word.split("=", 1) for word in words if "=" in word)


def await_state(cluster: Cluster, job_id: str, *states: str) -> None:
    wait_until(lambda: job(cluster, job_id)["JobState"] in states, f"job {job_id} to be {states}")


def await_lines(path: Path, count: int = 1) -> list[str]:
    """Wait until the file has that many lines; returns them."""

    def lines() -> list[str]:
        return path.read_text(encoding="utf-8").splitlines() if path.exists() else []

    wait_until(lambda: len(lines()) >= count, f"{count} lines in {path.name}")
    return lines()


def listening_addresses(ports: range) -> set[tuple[str, int]]:
    """Local addresses, in hexadecimal, on which somebody listens at these ports."""
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text(encoding="ascii").splitlines()[1:]:
            _, local, _, state, *_ = line.split()
            address, port = local.split(":")
            if state == "0A" and int(port, 16) in ports:
                found.add((address, int(port, 16)))
    return found


def ports_of(cluster: Cluster) -> range:
    return range(cluster.place.controller_port, cluster.place.node_port(cluster.config.nodes) + 1)


def test_nodes_and_partitions_are_as_described(cluster: Cluster) -> None:
    assert cluster.node_states() == dict.fromkeys(("n1", "n2", "n3", "n4"), "idle")
    lines = cluster.run("scontrol", "--oneliner", "show", "partition").splitlines()
    shown = [dict(word.split("=", 1) for word in line.split()) for line in lines]
    grace = str(cluster.config.grace_seconds)
    assert {
        p["PartitionName"]: (p["PreemptMode"], p["GraceTime"], p["MaxTime"]) for p in shown
    } == {
        "requeue": ("REQUEUE", grace, "UNLIMITED"),
        "requeue-now": ("REQUEUE", "0", "UNLIMITED"),
        "cancel": ("CANCEL", grace, "UNLIMITED"),
        "cancel-now": ("CANCEL", "0", "UNLIMITED"),
        "high": ("OFF", "0", "UNLIMITED"),
        "short": ("OFF", "0", "00:03:00"),
    }
    assert [p["PartitionName"] for p in shown if p["Default"] == "YES"] == [PARTITIONS[0].name]


def test_an_element_of_an_array_requeues_itself_and_leaves_the_others_alone(
    cluster: Cluster, submit: Submit, tmp_path: Path
) -> None:
    own = (
        "import os; from dlbhpc.scheduler.queue import own_job_id, requeue; "
        "print(requeue(own_job_id(os.environ)))"
    )
    script = f"""echo $SLURM_ARRAY_TASK_ID >>ran
if [ "$SLURM_ARRAY_TASK_ID" = 2 ] && [ -z "$SLURM_RESTART_COUNT" ]; then
    PYTHONPATH={CLI[1]}/../.. {sys.executable} -c '{own}'
    sleep 1000
fi"""
    submit(cluster, script, "--array=1-3", "--requeue")
    await_lines(tmp_path / "ran", 4)
    wait_until(lambda: not cluster.run("squeue", "--noheader").strip(), "the array to end")
    assert sorted((tmp_path / "ran").read_text().split()) == ["1", "2", "2", "3"]


def test_every_task_of_two_nodes_sees_all_gpus_of_its_node(cluster: Cluster) -> None:
    show = "echo $(hostname) $SLURM_PROCID $SLURM_LOCALID $CUDA_VISIBLE_DEVICES"
    output = cluster.run(
        "srun", "--nodes=2", "--ntasks-per-node=2", "--gpus-per-node=4", "sh", "-c", show
    )
    assert sorted(output.splitlines()) == [
        "n1 0 0 0,1,2,3",
        "n1 1 1 0,1,2,3",
        "n2 2 0 0,1,2,3",
        "n2 3 1 0,1,2,3",
    ]


def test_nodes_find_each_other_by_name(cluster: Cluster) -> None:
    output = cluster.run("srun", "getent", "ahostsv4", "n4")
    assert {line.split()[0] for line in output.splitlines()} == {"127.0.0.1"}


def test_daemons_listen_on_loopback_only(cluster: Cluster) -> None:
    ports = [cluster.place.controller_port, *(cluster.place.node_port(n) for n in (1, 2, 3, 4))]
    assert listening_addresses(ports_of(cluster)) == {("0100007F", port) for port in ports}


def test_high_priority_job_preempts_and_slurm_requeues(
    cluster: Cluster, submit: Submit, tmp_path: Path
) -> None:
    script = "echo started ${SLURM_RESTART_COUNT:-first}; srun sleep 1000"
    low = submit(cluster, script, "--partition=requeue-now", *ALL_GPUS_OF_TWO_NODES)
    log = tmp_path / f"{low}.log"
    await_lines(log)
    high = submit(cluster, "true", "--partition=high", "--nodes=4", "--gpus-per-node=4")
    await_state(cluster, high, "COMPLETED")
    wait_until(lambda: "started 1" in log.read_text(encoding="utf-8"), "the second start")
    assert log.read_text(encoding="utf-8").startswith("started first\n")
    assert job(cluster, low)["Restarts"] == "1"


def test_job_that_ends_within_the_grace_time_is_not_requeued_by_slurm(
    cluster: Cluster, submit: Submit, tmp_path: Path
) -> None:
    task = "trap 'exit 75' TERM; echo ready; while :; do sleep 0.1; done"
    script = f'srun sh -c "{task}"'
    low = submit(cluster, script, "--partition=requeue", *ALL_GPUS_OF_TWO_NODES)
    await_lines(tmp_path / f"{low}.log", 2)
    high = submit(cluster, "true", "--partition=high", "--nodes=4", "--gpus-per-node=4")
    await_state(cluster, high, "COMPLETED")
    await_state(cluster, low, "FAILED")
    assert job(cluster, low)["ExitCode"] == "75:0"
    assert job(cluster, low)["Restarts"] == "0"


def test_job_may_requeue_itself_within_the_grace_time(
    cluster: Cluster, submit: Submit, tmp_path: Path
) -> None:
    script = "echo started; srun sleep 1000; scontrol requeue $SLURM_JOB_ID; sleep 1000"
    low = submit(cluster, script, "--partition=requeue", *ALL_GPUS_OF_TWO_NODES)
    await_lines(tmp_path / f"{low}.log")
    high = submit(cluster, "true", "--partition=high", "--nodes=4", "--gpus-per-node=4")
    await_state(cluster, high, "COMPLETED")
    await_state(cluster, low, "PENDING")
    assert job(cluster, low)["Restarts"] == "1"


def test_user_signal_reaches_the_batch_shell_at_preemption(
    start_cluster: StartCluster, submit: Submit, tmp_path: Path
) -> None:
    cluster = start_cluster(nodes=1, send_user_signal=True)
    script = "trap 'echo asked; exit' USR2; echo ready; while :; do sleep 0.1; done"
    low = submit(cluster, script, "--partition=cancel", "--gpus-per-node=4", "--signal=B:USR2@60")
    await_lines(tmp_path / f"{low}.log")
    submit(cluster, "true", "--partition=high", "--gpus-per-node=4")
    assert await_lines(tmp_path / f"{low}.log", 2) == ["ready", "asked"]


def test_lost_node_leaves_a_ghost_and_the_job_is_requeued(
    start_cluster: StartCluster, submit: Submit, tmp_path: Path
) -> None:
    cluster = start_cluster(nodes=3, slurmd_timeout_seconds=2)
    script = "srun sh -c 'echo $SLURMD_NODENAME $$; exec sleep 1000'"
    lost = submit(cluster, script, *ALL_GPUS_OF_TWO_NODES, "--exclude=n3")
    lines = await_lines(tmp_path / f"{lost}.log", 2)
    ghost = ProcessId.of(int(next(line for line in lines if line.startswith("n2")).split()[1]))
    assert ghost is not None
    cluster.kill_slurmd("n2")
    wait_until(lambda: job(cluster, lost)["Restarts"] == "1", "the job to be requeued")
    assert cluster.node_states()["n2"] == "down*"
    assert ghost.alive()
    cluster.start_slurmd("n2")
    assert cluster.node_states()["n2"] == "idle"


def test_job_outlives_its_controller(cluster: Cluster, submit: Submit, tmp_path: Path) -> None:
    script = "echo ready; while [ ! -e go ]; do sleep 0.1; done"
    running = submit(cluster, script)
    await_lines(tmp_path / f"{running}.log")
    # The controller saves what has changed some seconds later, and forgets what it has not saved.
    state = cluster.place.folder / "state" / "job_state"
    saved = state.stat().st_mtime_ns if state.exists() else 0
    cluster.run("scontrol", "update", f"job={running}", "comment=changed")
    wait_until(lambda: state.exists() and state.stat().st_mtime_ns > saved, "the state to be saved")
    cluster.kill_controller()
    assert cluster.dead_daemons() == ["slurmctld"]
    cluster.start_controller()
    assert job(cluster, running)["JobState"] == "RUNNING"
    (tmp_path / "go").touch()
    await_state(cluster, running, "COMPLETED")


def test_reset_mends_whatever_a_test_has_broken(
    cluster: Cluster, submit: Submit, tmp_path: Path
) -> None:
    broken = submit(cluster, "trap '' TERM; srun sleep 1000", *ALL_GPUS_OF_TWO_NODES)
    await_state(cluster, broken, "RUNNING")
    submit(cluster, "true", "--hold")
    cluster.run("scontrol", "update", "nodename=n3", "state=drain", "reason=test")
    cluster.kill_slurmd("n1")
    cluster.kill_controller()
    cluster.reset()
    assert set(cluster.node_states().values()) == {"idle"}
    assert cluster.run("squeue", "--noheader") == ""
    assert processes_of_jobs(cluster.place.name, cluster.place.log) == set()


def test_stop_leaves_no_process_no_port_and_no_file(
    start_cluster: StartCluster, submit: Submit, tmp_path: Path
) -> None:
    cluster = start_cluster(nodes=2, gpus_per_node=1)
    # One that has left its step, and one that no longer carries the job's environment.
    script = "setsid --fork sh -c 'echo $$; exec sleep 1000'; env -i sh -c 'echo $$; sleep 1000'"
    running = submit(cluster, script)
    tasks = [ProcessId.of(int(line)) for line in await_lines(tmp_path / f"{running}.log", 2)]
    cluster.kill_slurmd("n1")
    everything = processes_of_cluster(cluster.place.name, cluster.place.log)
    assert len(everything) >= 5 and everything.issuperset(tasks)
    cluster.stop()
    assert [process for process in everything if process.alive()] == []
    assert listening_addresses(ports_of(cluster)) == set()
    assert not cluster.place.folder.exists()


def test_two_clusters_do_not_meet(
    cluster: Cluster, start_cluster: StartCluster, submit: Submit
) -> None:
    other = start_cluster(nodes=1)
    job_id = submit(cluster, "sleep 1000")
    await_state(cluster, job_id, "RUNNING")
    assert other.run("squeue", "--noheader") == ""
    assert other.place.first_job_id != cluster.place.first_job_id
    other.stop()
    assert job(cluster, job_id)["JobState"] == "RUNNING"
    assert not cluster.dead_daemons()


def test_second_cluster_in_the_same_folder_is_refused(cluster: Cluster) -> None:
    with pytest.raises(DlbhpcError, match=r"runs in .* already"):
        Cluster.start(cluster.place.folder)
    assert not cluster.dead_daemons()


def test_daemon_that_cannot_start_is_reported_with_its_last_words(
    start_cluster: StartCluster, tmp_path: Path
) -> None:
    cluster = start_cluster(nodes=1)
    cluster.kill_controller()
    cluster.place.slurm_conf.write_text("NoSuchKey=1\n", encoding="utf-8")
    with pytest.raises(DlbhpcError, match=r"slurmctld .* has ended.*NoSuchKey"):
        cluster.start_controller()


def test_command_line_starts_a_cluster_that_outlives_it(short_path: Path) -> None:
    unmet = unmet_requirement(ClusterConfig())
    if unmet is not None:
        pytest.skip(unmet)
    folder = short_path / "cluster"

    def cli(*arguments: str) -> str:
        return subprocess.run(
            [*CLI, *arguments, str(folder)], check=True, capture_output=True, text=True
        ).stdout

    try:
        assert f". {folder}/env.sh" in cli("up", "--nodes", "1", "--no-job-requeue")
        assert "idle n1" in cli("status")
        shell = subprocess.run(
            ["sh", "-c", f". {folder}/env.sh && scontrol show config"],
            check=True,
            capture_output=True,
            text=True,
            env={"PATH": os.environ["PATH"]},
        )
        assert "JobRequeue              = 0" in shell.stdout
        assert cli("env") == f"export SLURM_CONF={folder}/slurm.conf\n"
    finally:
        cli("down")
    assert not folder.exists()


def test_accounting_keeps_what_the_queue_forgets(
    start_cluster: StartCluster, submit: Submit
) -> None:
    cluster = start_cluster(nodes=1, accounting=True)
    job_id = submit(cluster, "exit 3")
    query = ("sacct", "--noheader", "--parsable2", "--allocations", f"--jobs={job_id}")
    wait_until(
        lambda: cluster.run(*query, "--format=State,ExitCode").strip() == "FAILED|3:0",
        "sacct to know the job's end",
    )
