"""Examine a cluster and this machine: gather the facts once, then ask every check of the tables."""

from __future__ import annotations

from pathlib import Path

from dlbhpc.images.mounts import look, mount_modes
from dlbhpc.run.measured import Saves
from dlbhpc.scheduler import host as probe
from dlbhpc.scheduler.cluster import (
    Configuration,
    parse_config,
    parse_nodes,
    parse_partitions,
    parse_qos,
    partition_of,
)
from dlbhpc.scheduler.findings import Finding
from dlbhpc.scheduler.host import Answer, ask
from dlbhpc.scheduler.host_checks import HOST_CHECKS, Host
from dlbhpc.scheduler.profile import Profile
from dlbhpc.scheduler.queue import slurm_command
from dlbhpc.scheduler.slurm_checks import SLURM_CHECKS, Site

_LEAST_TRIAL_BYTES = 1 << 20
_MOST_TRIAL_BYTES = 1 << 28


def examine(
    root: Path, profile: Profile, saves: Saves | None, run_job: bool = False
) -> dict[str, Finding]:
    """Every check's finding, by its name. ``saves`` is what the saves of earlier runs took."""
    controller = ask("scontrol", "ping") if profile.scheduler == "slurm" else None
    configuration = _configuration() if controller and controller.ok else None
    host = _host(root, profile, saves, controller, configuration, run_job)
    looked = {name: check(host) for name, check in HOST_CHECKS.items()}
    findings = {name: finding for name, finding in looked.items() if finding is not None}
    if configuration is not None:
        site = Site(profile, configuration, saves.seconds if saves else None)
        findings |= {name: check(site) for name, check in SLURM_CHECKS.items()}
    return findings


def _configuration() -> Configuration:
    configuration = Configuration(
        values=parse_config(slurm_command("scontrol", "show", "config")),
        partitions=parse_partitions(
            slurm_command("scontrol", "--all", "--oneliner", "show", "partition")
        ),
        nodes=parse_nodes(slurm_command("scontrol", "--all", "--oneliner", "show", "node")),
    )
    if not configuration.has_accounting:
        return configuration
    fields = "format=Name,PreemptMode,GraceTime"
    answer = ask("sacctmgr", "--noheader", "--parsable2", "show", "qos", fields)
    qos = parse_qos(answer.text) if answer.ok else ()
    return Configuration(configuration.values, configuration.partitions, configuration.nodes, qos)


def _host(
    root: Path,
    profile: Profile,
    saves: Saves | None,
    controller: Answer | None,
    configuration: Configuration | None,
    run_job: bool,
) -> Host:
    size = saves.bytes if saves else _LEAST_TRIAL_BYTES
    wanted = None if profile.container == "none" else profile.container
    container = probe.container(wanted)
    munge = shared = None
    if configuration is not None and configuration.text("AuthType") in ("", "auth/munge"):
        munge = probe.munge(configuration.option("AuthInfo", "socket"))
    if configuration is not None and run_job:
        partition = partition_of(configuration, profile)
        members = [n for n in configuration.nodes if partition and partition.name in n.partitions]
        shared = probe.shared_trial(root, profile, min(2, max(1, len(members))))
    return Host(
        root=str(root),
        slurm=profile.scheduler == "slurm",
        file_system=probe.file_system(root),
        write=probe.trial_write(root, min(max(size, _LEAST_TRIAL_BYTES), _MOST_TRIAL_BYTES)),
        checkpoint_bytes=saves.bytes if saves else None,
        controller=controller,
        munge=munge,
        container=container,
        mounts=mount_modes(look(container[0])) if container else (),
        wanted_container=wanted,
        wanted_mount=profile.container_mount if wanted else None,
        modules=bool(profile.modules),
        shared=shared,
    )
