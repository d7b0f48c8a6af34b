"""What a cluster's settings mean for a run, in sentences."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dlbhpc.scheduler.cluster import (
    Configuration,
    parse_config,
    parse_nodes,
    parse_partitions,
)
from dlbhpc.scheduler.findings import NOTE, OK, PROBLEM
from dlbhpc.scheduler.profile import Profile
from dlbhpc.scheduler.slurm_checks import (
    SLURM_CHECKS,
    Site,
    check_credential,
    check_gpus,
    check_killers,
    check_memory_of_jobs,
    check_partition,
    check_preemption,
    check_requeue,
    check_signal,
    check_tracking,
)

RECORDED = Path(__file__).parent / "slurm_22_05"
PROFILE = Profile(name="site", scheduler="slurm", grace_seconds=60, save_every_minutes=5)


def site(
    partition: str | None = None,
    save_seconds: float | None = None,
    profile: Profile = PROFILE,
    **values: str,
) -> Site:
    """A Slurm 22.05 with some values changed, and a profile that goes to one of its partitions."""
    text = {path.stem: path.read_text() for path in RECORDED.glob("*.txt")}
    configuration = Configuration(
        parse_config(text["config"]) | values,
        parse_partitions(text["partition"]),
        parse_nodes(text["node"]),
    )
    return Site(replace(profile, partition=partition), configuration, save_seconds)


@pytest.mark.parametrize(
    ("partition", "level"),
    [
        ("requeue", OK),
        ("requeue-now", OK),
        ("cancel", NOTE),
        ("cancel-now", PROBLEM),
        ("high", OK),
    ],
)
def test_preemption_that_cancels_is_warned_of(partition: str, level: str) -> None:
    finding = check_preemption(site(partition))
    assert finding.level == level
    assert f"partition {partition}" in finding.found
    if partition.startswith("cancel"):
        assert "PreemptMode=CANCEL" in finding.found
        assert "needs resubmit" in finding.means
        assert "REQUEUE" in finding.change


@pytest.mark.parametrize(
    ("partition", "save_seconds", "level", "named"),
    [
        ("requeue", None, NOTE, "KillWait after scancel"),
        ("requeue", 2.0, OK, ""),
        ("requeue", 4.0, PROBLEM, "KillWait after scancel (5 s)"),
        ("requeue", 9.0, PROBLEM, "GraceTime at preemption (partition requeue) (10 s)"),
        ("requeue", 70.0, PROBLEM, "--signal before the time limit (grace_seconds) (60 s)"),
        ("requeue-now", None, PROBLEM, "GraceTime at preemption (partition requeue-now)"),
        ("cancel-now", 1.0, PROBLEM, "GraceTime at preemption (partition cancel-now)"),
        ("high", 2.0, OK, ""),
    ],
)
def test_every_killer_is_named_the_shortest_first(
    partition: str, save_seconds: float | None, level: str, named: str
) -> None:
    finding = check_killers(site(partition, save_seconds))
    assert finding.level == level
    assert named in finding.means
    order = [finding.found.find(name) for name in ("KillWait", "--signal")]
    assert 0 < order[0] < order[1]
    assert ("GraceTime" in finding.found) is (partition != "high")


def test_a_partition_that_is_not_there_or_not_up_or_too_short() -> None:
    assert check_partition(site("requeue")).level == OK
    missing = check_partition(site("nowhere"))
    assert (missing.level, "nowhere" in missing.found) == (PROBLEM, True)
    long = check_partition(site("short", profile=replace(PROFILE, time="1:00:00")))
    assert (long.level, "00:03:00" in long.change) == (PROBLEM, True)
    assert check_partition(site("short", profile=replace(PROFILE, time="3"))).level == OK
    up = site("requeue")
    down = tuple(replace(item, is_up=False) for item in up.configuration.partitions)
    closed = replace(up, configuration=replace(up.configuration, partitions=down))
    assert check_partition(closed).level == PROBLEM


@pytest.mark.parametrize(
    ("gpus", "kind", "level"),
    [(4, None, OK), (None, None, OK), (8, None, PROBLEM), (4, "h100", PROBLEM)],
)
def test_the_gpus_that_are_asked_for(gpus: int | None, kind: str | None, level: str) -> None:
    profile = replace(PROFILE, gpus_per_node=gpus, gpu_type=kind)
    assert check_gpus(site("requeue", profile=profile)).level == level


@pytest.mark.parametrize("key", ["RequeueExit", "RequeueExitHold"])
@pytest.mark.parametrize(("value", "level"), [("75", PROBLEM), ("1,70-80", PROBLEM), ("9", OK)])
def test_exit_statuses_that_slurm_takes_for_its_own(key: str, value: str, level: str) -> None:
    assert check_requeue(site(**{key: value})).level == level


def test_how_often_a_launch_may_fail() -> None:
    assert "MaxBatchRequeue=5 (Slurm's default)" in check_requeue(site()).found
    assert "fails 3 times" in check_requeue(site(MaxBatchRequeue="3")).means
    assert "jobs ask for --requeue" in check_requeue(site(JobRequeue="0")).found


def test_the_delay_of_a_requeue() -> None:
    assert check_credential(site()).level == OK
    long = check_credential(site(AuthInfo="(null)"))
    assert (long.level, "120 s" in long.means) == (NOTE, True)


@pytest.mark.parametrize(
    ("partition", "values", "words"),
    [
        ("high", {}, "no preemption"),
        ("requeue", {}, "send_user_signal is off"),
        ("requeue", {"PreemptParameters": "send_user_signal"}, "send_user_signal is on"),
    ],
)
def test_how_the_request_arrives(partition: str, values: dict[str, str], words: str) -> None:
    assert words in check_signal(site(partition, **values)).found


def test_what_is_known_of_a_job_that_ended_in_silence() -> None:
    assert check_memory_of_jobs(site()).level == NOTE
    kept = site(AccountingStorageType="accounting_storage/slurmdbd")
    assert check_memory_of_jobs(kept).level == OK


def test_what_may_outlive_a_job() -> None:
    assert check_tracking(site()).level == NOTE
    assert check_tracking(site(ProctrackType="proctrack/cgroup")).level == OK


def test_every_check_is_in_the_table_and_says_something() -> None:
    for check in SLURM_CHECKS.values():
        finding = check(site())
        assert finding.found
        assert finding.means
        assert bool(finding.change) or finding.level != PROBLEM
