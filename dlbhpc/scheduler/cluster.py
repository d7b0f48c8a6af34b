"""What a cluster's configuration says of a run: the answers of scontrol and sacctmgr, parsed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from dlbhpc.errors import DlbhpcError
from dlbhpc.scheduler.profile import Profile
from dlbhpc.scheduler.times import parse_time

DEFAULT_CRED_EXPIRE = 120
"""Seconds that a credential lives where AuthInfo does not say (``man slurm.conf``, AuthInfo)."""

DEFAULT_BATCH_REQUEUE = 5
"""MaxBatchRequeue where the configuration does not show it, as before Slurm 23 (slurm.conf)."""

_NOTHING = ("", "(null)", "N/A", "NONE", "None")
_MODES = ("REQUEUE", "CANCEL", "SUSPEND")
_FIELD = re.compile(r"(?:^| )([A-Za-z][A-Za-z0-9_:]*)=")


@dataclass(frozen=True)
class Partition:
    """One partition. ``preempt_mode`` and ``qos`` are None where the cluster's own holds."""

    name: str
    is_default: bool
    is_up: bool
    preempt_mode: str | None
    grace_seconds: int
    max_seconds: int | None
    qos: str | None


@dataclass(frozen=True)
class Qos:
    """What a quality of service says of preemption; ``preempt_mode`` None: the cluster's holds."""

    name: str
    preempt_mode: str | None
    grace_seconds: int


@dataclass(frozen=True)
class Node:
    """One node: its partitions, and how many GPUs it has of which type ("" for no type)."""

    name: str
    partitions: tuple[str, ...]
    gpus: Mapping[str, int]


@dataclass(frozen=True)
class Configuration:
    """One cluster as Slurm's commands describe it; times in seconds."""

    values: Mapping[str, str]
    partitions: tuple[Partition, ...] = ()
    nodes: tuple[Node, ...] = ()
    qos: tuple[Qos, ...] = ()

    def text(self, key: str) -> str:
        """A value of slurm.conf as scontrol shows it, "" where there is none."""
        value = self.values.get(key, "")
        return "" if value in _NOTHING else value

    def number(self, key: str, default: int = 0) -> int:
        """The number that a value begins with, as in ``30 sec``."""
        match = re.match(r"\d+", self.text(key))
        return int(match[0]) if match else default

    def option(self, key: str, name: str) -> str | None:
        """One of a value's comma-separated options: what follows its ``=``, "" for a bare one."""
        for word in self.text(key).split(","):
            found, _, value = word.partition("=")
            if found == name:
                return value
        return None

    @property
    def sends_user_signal(self) -> bool:
        """Whether a preempted job gets the signal of --signal; the option's name changed once."""
        return any(
            self.option(key, name) is not None
            for key, name in (
                ("PreemptParameters", "send_user_signal"),
                ("SlurmctldParameters", "preempt_send_user_signal"),
            )
        )

    @property
    def cred_expire_seconds(self) -> int:
        expire = self.option("AuthInfo", "cred_expire") or ""
        return int(expire) if expire.isdecimal() else DEFAULT_CRED_EXPIRE

    @property
    def has_accounting(self) -> bool:
        return self.text("AccountingStorageType") not in ("", "accounting_storage/none")


@dataclass(frozen=True)
class Preemption:
    """What happens to a job that is preempted: ``mode`` is OFF, REQUEUE, CANCEL or SUSPEND.

    ``source`` names the place in the configuration that decides; ``grace_seconds`` lie between the
    request to stop and the kill.
    """

    mode: str
    grace_seconds: int
    source: str


def parse_config(text: str) -> dict[str, str]:
    """The values of ``scontrol show config``."""
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line)
    return {key.strip(): value.strip() for key, _, value in pairs}


def parse_partitions(text: str) -> tuple[Partition, ...]:
    """The partitions of ``scontrol --oneliner show partition``."""
    found = []
    for line in text.splitlines():
        values = _fields(line)
        if "PartitionName" in values:
            found.append(
                Partition(
                    name=values["PartitionName"],
                    is_default=values.get("Default") == "YES",
                    is_up=values.get("State", "UP") == "UP",
                    preempt_mode=_mode(values.get("PreemptMode", "")),
                    grace_seconds=_seconds(values.get("GraceTime", "0")),
                    max_seconds=_limit(values.get("MaxTime", "")),
                    qos=_known(values.get("QoS", "")),
                )
            )
    return tuple(found)


def parse_nodes(text: str) -> tuple[Node, ...]:
    """The nodes of ``scontrol --oneliner show node``."""
    found = []
    for line in text.splitlines():
        values = _fields(line)
        if "NodeName" in values:
            partitions = _known(values.get("Partitions", "")) or ""
            gpus = _gpus(values.get("Gres", ""))
            found.append(Node(values["NodeName"], tuple(partitions.split(",")), gpus))
    return tuple(found)


def parse_qos(text: str) -> tuple[Qos, ...]:
    """The lines of ``sacctmgr --parsable2 show qos format=Name,PreemptMode,GraceTime``."""
    found = []
    for line in text.splitlines():
        parts = line.split("|")
        if len(parts) == 3:
            # "cluster" stands for the cluster's own mode.
            found.append(Qos(parts[0], _mode(parts[1]), _seconds(parts[2])))
    return tuple(found)


def partition_of(configuration: Configuration, profile: Profile) -> Partition | None:
    """The partition that a job of this profile goes to; None where there is no such one.

    Of several (``a,b``) the first one counts.
    """
    wanted = (profile.partition or "").partition(",")[0]
    for partition in configuration.partitions:
        if partition.name == wanted or (not wanted and partition.is_default):
            return partition
    return None


def preemption_of(configuration: Configuration, profile: Profile) -> Preemption:
    """How a job of this profile is preempted, and which setting says so.

    ``PreemptType`` decides whether partitions or qualities of service do (``man slurm.conf``).
    """
    kind = configuration.text("PreemptType").rpartition("/")[2]
    overall = _mode(configuration.text("PreemptMode")) or "OFF"
    partition = partition_of(configuration, profile)
    if kind == "partition_prio" and partition is not None:
        mode = partition.preempt_mode or overall
        return Preemption(mode, partition.grace_seconds, f"partition {partition.name}")
    if kind == "qos":
        name = profile.qos or (partition.qos if partition else None)
        qos = next((qos for qos in configuration.qos if qos.name == name), None)
        if qos is not None:
            return Preemption(qos.preempt_mode or overall, qos.grace_seconds, f"QOS {qos.name}")
        grace = partition.grace_seconds if partition else 0
        return Preemption(overall, grace, "the cluster's PreemptMode (the job's QOS is not known)")
    return Preemption("OFF", 0, "PreemptType none")


def _fields(line: str) -> dict[str, str]:
    """KEY=VALUE pairs of one line; a value may hold blanks, and ends before the next KEY=."""
    keys = list(_FIELD.finditer(line))
    stops = [key.start() for key in keys[1:]] + [len(line)]
    pairs = zip(keys, stops, strict=True)
    return {key[1]: line[key.end() : stop].strip() for key, stop in pairs}


def _known(value: str) -> str | None:
    return None if value in _NOTHING else value


def _mode(value: str) -> str | None:
    """The mode that matters of one that may be several, as GANG,SUSPEND is; None for none."""
    words = value.upper().split(",")
    if "OFF" in words or "DISABLED" in words:
        return "OFF"
    return next((mode for mode in _MODES if mode in words), None)


def _limit(value: str) -> int | None:
    try:
        return parse_time(value) if _known(value) else None
    except DlbhpcError:
        return None


def _seconds(value: str) -> int:
    """``10`` as scontrol writes a grace time, ``00:00:10`` as sacctmgr does."""
    if ":" in value:
        return _limit(value) or 0
    return int(value) if value.isdecimal() else 0


def _gpus(gres: str) -> dict[str, int]:
    """GPUs by type in ``gpu:4``, ``gpu:a100:4(S:0-1),shard:8`` or ``gpu:a100:2,gpu:h100:2``."""
    found: dict[str, int] = {}
    for item in re.sub(r"\([^)]*\)", "", gres).split(","):
        parts = item.split(":")
        if parts[0] == "gpu":
            count = parts[-1] if len(parts) > 1 and parts[-1].isdecimal() else "1"
            kind = parts[1] if len(parts) > 2 or (len(parts) == 2 and parts[1] != count) else ""
            found[kind] = found.get(kind, 0) + int(count)
    return found
