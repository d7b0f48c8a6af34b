"""Cluster profiles: what one site, or this machine, asks of a job."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from dlbhpc.errors import DlbhpcError
from dlbhpc.records import from_plain
from dlbhpc.scheduler.memory import parse_memory
from dlbhpc.scheduler.profile_checks import LEAST_GRACE_SECONDS, check_values
from dlbhpc.scheduler.profile_files import Composed, compose, profile_folders
from dlbhpc.scheduler.times import format_time, parse_time, round_up_to_minutes

DEFAULT_VARIABLE = "DLBHPC_CLUSTER"
"""Environment variable that makes a profile the user's default."""


@dataclass(frozen=True)
class Profile:
    """One cluster profile; unset values are left to the site's own defaults.

    docs/profiles.md says what each key means. ``time`` is passed to sbatch as written. ``memory``
    is what a node gives, however ``memory_option`` asks for it. ``gpus_per_node`` and ``max_nodes``
    are limits of a run's geometry, never defaults. ``accelerator`` is what trials train on:
    ``cuda``, or ``cpu`` where there are no GPUs, or none but in name.
    """

    name: str
    scheduler: str
    grace_seconds: int
    save_every_minutes: int
    min_save_every_minutes: int | None = None
    max_save_every_minutes: int | None = None
    # What sbatch is asked for
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    time: str | None = None
    max_nodes: int | None = None
    gpus_per_node: int | None = None
    gpu_type: str | None = None
    gpu_option: str = "gpus-per-node"
    cpus_per_task: int | None = None
    memory: str | None = None
    memory_option: str = "mem"
    sbatch_lines: tuple[str, ...] = ()
    # What surrounds the training on a node
    modules: tuple[str, ...] = ()
    prologue: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    scratch: str | None = None
    network_interface: str | None = None
    num_workers: int | None = None
    accelerator: str = "cuda"
    container: str = "none"
    container_mount: str = "kernel"
    container_gpu: str = "nv"


_NUMBERS = frozenset(f.name for f in fields(Profile) if "int" in str(f.type))


def default_profile_name() -> str:
    """The user's default, else ``local`` where there is no sbatch, else ``slurm``."""
    chosen = os.environ.get(DEFAULT_VARIABLE)
    if chosen:
        return chosen
    return "slurm" if shutil.which("sbatch") else "local"


def load_profile(
    name: str | None = None,
    root: Path | None = None,
    flags: Mapping[str, Any] | None = None,
) -> Profile:
    """The profile of this name (the default one), with the values of flags over its own.

    ``root`` is the project root, in which profiles are looked for first. ``flags`` holds values by
    key; its ``sbatch_lines`` are added to the profile's. Raises DlbhpcError, which names the file
    or the flag, for an unknown name, key or value.
    """
    return profile_of(read_profile(name, profile_folders(root)), flags or {})


def read_profile(name: str | None, folders: Sequence[Path]) -> Composed:
    """The profile's values as they stand in its files, not yet checked."""
    return compose(name or default_profile_name(), folders, _NUMBERS)


def profile_of(composed: Composed, flags: Mapping[str, Any]) -> Profile:
    """The checked profile of composed values with those of flags over them."""
    here = f"cluster profile {composed.path}"
    profile = from_plain(Profile, {**composed.values, "name": composed.path.stem}, here)

    def stands(key: str) -> str:
        return f"cluster profile {composed.sources.get(key, composed.path)}: {key}"

    def flag(key: str) -> str:
        return flag_of(key) if key in flags else stands(key)

    check_values(vars(profile), stands)
    check_values(flags, flag)
    lines = {"sbatch_lines": (*profile.sbatch_lines, *flags.get("sbatch_lines", ()))}
    profile = replace(profile, **{**flags, **lines})
    for key, complaint in _contradictions(profile):
        raise DlbhpcError(f"{flag(key)} {complaint}")
    return profile


def flag_of(key: str) -> str:
    """The flag that overrides a key of the profile."""
    return "--sbatch-line" if key == "sbatch_lines" else "--" + key.replace("_", "-")


def _contradictions(profile: Profile) -> Iterator[tuple[str, str]]:
    """Keys whose values do not go together with others', and why."""
    grace, limit = profile.grace_seconds, profile.time and parse_time(profile.time)
    if profile.scheduler == "slurm" and grace < LEAST_GRACE_SECONDS:
        yield (
            "grace_seconds",
            f"is {grace}: at least {LEAST_GRACE_SECONDS}, since Slurm may look at its clock only "
            "once a minute",
        )
    if limit and grace >= round_up_to_minutes(limit):
        yield (
            "time",
            f"is {profile.time}: a limit of {format_time(round_up_to_minutes(limit))} leaves no "
            f"time before the warning, which comes {grace} seconds (grace_seconds) before it",
        )
    if profile.memory and profile.memory_option != "mem":
        if not parse_memory(profile.memory).amount:
            yield (
                "memory",
                f"is 0 (all of a node's), which --{profile.memory_option} cannot ask for",
            )
        elif profile.memory_option == "mem-per-cpu" and profile.cpus_per_task is None:
            yield "memory_option", "is mem-per-cpu, which needs cpus_per_task: name that too"
    least, most = profile.min_save_every_minutes, profile.max_save_every_minutes
    if least is not None and profile.save_every_minutes < least:
        yield "save_every_minutes", f"is below min_save_every_minutes, {least}"
    if most is not None and profile.save_every_minutes > most:
        yield "save_every_minutes", f"is above max_save_every_minutes, {most}"
