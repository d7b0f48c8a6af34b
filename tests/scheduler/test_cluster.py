"""What scontrol and sacctmgr print, and what is read out of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dlbhpc.scheduler.cluster import (
    Configuration,
    Preemption,
    Qos,
    parse_config,
    parse_nodes,
    parse_partitions,
    parse_qos,
    partition_of,
    preemption_of,
)
from dlbhpc.scheduler.profile import Profile

RECORDED = Path(__file__).parent / "slurm_22_05"
PROFILE = Profile(name="site", scheduler="slurm", grace_seconds=60, save_every_minutes=5)


@pytest.fixture
def configuration() -> Configuration:
    """As a Slurm 22.05 printed it."""
    text = {path.stem: path.read_text() for path in RECORDED.glob("*.txt")}
    return Configuration(
        parse_config(text["config"]), parse_partitions(text["partition"]), parse_nodes(text["node"])
    )


def test_values_of_the_configuration(configuration: Configuration) -> None:
    assert configuration.text("PreemptType") == "preempt/partition_prio"
    assert configuration.text("PreemptParameters") == ""
    assert configuration.number("KillWait") == 5
    assert configuration.number("MaxBatchRequeue", 5) == 5
    assert configuration.cred_expire_seconds == 5
    assert configuration.option("AuthInfo", "socket") == "/srv/slurm/munge/socket"
    assert not configuration.has_accounting
    assert not configuration.sends_user_signal


@pytest.mark.parametrize(
    ("key", "value", "sends"),
    [
        ("PreemptParameters", "send_user_signal", True),
        ("PreemptParameters", "reorder_count=1,send_user_signal", True),
        ("SlurmctldParameters", "preempt_send_user_signal", True),
        ("SlurmctldParameters", "enable_configless", False),
    ],
)
def test_the_name_of_the_user_signal_differs_by_version(key: str, value: str, sends: bool) -> None:
    assert Configuration({key: value}).sends_user_signal is sends


@pytest.mark.parametrize("auth_info", ["(null)", "socket=/x", "cred_expire=", "cred_expire=x"])
def test_a_credential_lives_two_minutes_where_nothing_is_said(auth_info: str) -> None:
    assert Configuration({"AuthInfo": auth_info}).cred_expire_seconds == 120


def test_partitions(configuration: Configuration) -> None:
    found = {item.name: item for item in configuration.partitions}
    assert list(found) == ["requeue", "requeue-now", "cancel", "cancel-now", "high", "short"]
    assert found["requeue"].is_default
    assert (found["requeue"].preempt_mode, found["requeue"].grace_seconds) == ("REQUEUE", 10)
    assert (found["cancel-now"].preempt_mode, found["cancel-now"].grace_seconds) == ("CANCEL", 0)
    assert found["high"].preempt_mode == "OFF"
    assert (found["short"].max_seconds, found["high"].max_seconds) == (180, None)
    assert all(item.qos is None and item.is_up for item in found.values())


def test_nodes_and_their_gpus(configuration: Configuration) -> None:
    assert [node.name for node in configuration.nodes] == ["n1", "n2", "n3", "n4"]
    assert configuration.nodes[0].gpus == {"": 4}
    assert "cancel-now" in configuration.nodes[0].partitions


@pytest.mark.parametrize(
    ("gres", "gpus"),
    [
        ("(null)", {}),
        ("gpu:4", {"": 4}),
        ("gpu:a100:4(S:0-1)", {"a100": 4}),
        ("gpu:a100:2(S:0),gpu:h100:6(S:1),shard:8", {"a100": 2, "h100": 6}),
        ("gpu", {"": 1}),
        ("gpu:a100", {"a100": 1}),
        ("craynetwork:4", {}),
    ],
)
def test_gpus_by_type(gres: str, gpus: dict[str, int]) -> None:
    (node,) = parse_nodes(f"NodeName=n1 OS=Linux 5.4 #1 SMP Gres={gres} Partitions=a,b State=IDLE")
    assert node.gpus == gpus
    assert node.partitions == ("a", "b")


def test_a_qos_of_the_cluster_has_no_mode_of_its_own() -> None:
    text = "normal|cluster|00:00:00\nscavenger|requeue|00:02:00\nold|gang,suspend|\nwarning\n"
    assert parse_qos(text) == (
        Qos("normal", None, 0),
        Qos("scavenger", "REQUEUE", 120),
        Qos("old", "SUSPEND", 0),
    )


@pytest.mark.parametrize(
    ("partition", "expected"),
    [(None, "requeue"), ("cancel", "cancel"), ("short,high", "short"), ("nowhere", None)],
)
def test_where_a_job_of_the_profile_goes(
    configuration: Configuration, partition: str | None, expected: str | None
) -> None:
    found = partition_of(configuration, replace(PROFILE, partition=partition))
    assert (found.name if found else None) == expected


def test_a_partition_decides_over_preemption_by_priority(configuration: Configuration) -> None:
    profile = replace(PROFILE, partition="cancel")
    assert preemption_of(configuration, profile) == Preemption("CANCEL", 10, "partition cancel")


def test_the_qos_of_the_job_decides_over_preemption_by_qos(configuration: Configuration) -> None:
    qos = (Qos("scavenger", "CANCEL", 30), Qos("normal", None, 0))
    by_qos = replace(
        configuration, values={"PreemptType": "preempt/qos", "PreemptMode": "REQUEUE"}, qos=qos
    )
    profile = replace(PROFILE, qos="scavenger")
    assert preemption_of(by_qos, profile) == Preemption("CANCEL", 30, "QOS scavenger")
    assert preemption_of(by_qos, replace(PROFILE, qos="normal")).mode == "REQUEUE"
    assert "not known" in preemption_of(by_qos, PROFILE).source
    partitions = (replace(configuration.partitions[0], qos="scavenger"),)
    assert preemption_of(replace(by_qos, partitions=partitions), PROFILE).mode == "CANCEL"


@pytest.mark.parametrize("kind", ["preempt/none", ""])
def test_without_a_preempt_type_nothing_is_preempted(
    configuration: Configuration, kind: str
) -> None:
    nothing = replace(configuration, values={"PreemptType": kind, "PreemptMode": "CANCEL"})
    assert preemption_of(nothing, PROFILE).mode == "OFF"
