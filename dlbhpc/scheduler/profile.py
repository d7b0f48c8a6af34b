"""Cluster profiles: what one site, or this machine, asks of a job."""

from __future__ import annotations

import difflib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dlbhpc.errors import DlbhpcError
from dlbhpc.geometry import require_positive
from dlbhpc.layout import PROFILES
from dlbhpc.records import from_plain

DEFAULT_VARIABLE = "DLBHPC_CLUSTER"
"""Environment variable that makes a profile the user's default."""

SCHEDULERS = ("local", "slurm")
ACCELERATORS = ("cuda", "cpu")


@dataclass(frozen=True)
class Profile:
    """One cluster profile; unset values are left to the site's own defaults.

    ``time`` and ``memory`` are passed to sbatch as written. ``gpus_per_node`` is the number of GPUs
    that a node has: a limit for a run's geometry, never a default. ``accelerator`` is what trials
    train on: ``cuda``, or ``cpu`` where there are no GPUs, or none but in name.
    """

    name: str
    scheduler: str
    grace_seconds: int
    save_every_minutes: int
    time: str | None = None
    cpus_per_task: int | None = None
    gpus_per_node: int | None = None
    gpu_type: str | None = None
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    memory: str | None = None
    num_workers: int | None = None
    accelerator: str = "cuda"
    sbatch_lines: tuple[str, ...] = ()


_POSITIVE = ("grace_seconds", "save_every_minutes", "cpus_per_task", "gpus_per_node")
_OURS = frozenset(
    f"--{name}"
    for name in (
        "array job-name nodes ntasks ntasks-per-node gpus gpus-per-node gpus-per-task gres "
        "cpus-per-task output error open-mode signal comment requeue no-requeue export wrap"
    ).split()
)
"""Options of sbatch that the batch script sets, or that would undo what it sets."""

_TEXT = ("time", "gpu_type", "partition", "account", "qos", "constraint", "memory")


def default_profile_name() -> str:
    """The user's default, else ``local`` where there is no sbatch, else ``slurm``."""
    chosen = os.environ.get(DEFAULT_VARIABLE)
    if chosen:
        return chosen
    return "slurm" if shutil.which("sbatch") else "local"


def load_profile(name: str | None = None, folder: Path = PROFILES) -> Profile:
    """Read ``folder/NAME.yaml``; raises DlbhpcError for an unknown name, key or value."""
    import yaml

    name = name or default_profile_name()
    names = sorted(path.stem for path in folder.glob("*.yaml"))
    if name not in names:
        near = difflib.get_close_matches(name, names, n=1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise DlbhpcError(
            f"there is no cluster profile {name!r} in {folder}{hint}: "
            f"choose one of {', '.join(names)}, or write {name}.yaml there"
        )
    path = folder / f"{name}.yaml"
    try:
        text = path.read_text(encoding="utf-8")
        values = yaml.safe_load(text)
        # Times, sizes and names reach sbatch as written: YAML would make 43200 of 12:00:00.
        written = yaml.load(text, Loader=yaml.BaseLoader)
    except yaml.YAMLError as error:
        raise DlbhpcError(f"cluster profile {path} is not valid YAML: {error}") from error
    if not isinstance(values, dict):
        raise DlbhpcError(f"cluster profile {path} must hold keys and values")
    texts = {key: written[key] for key in _TEXT if values.get(key) is not None}
    return _checked(name, values | texts, path)


def _checked(name: str, values: dict[str, Any], path: Path) -> Profile:
    where = f"cluster profile {path}"
    profile = from_plain(Profile, {**values, "name": name}, where)
    if profile.scheduler not in SCHEDULERS:
        raise DlbhpcError(
            f"{where}: scheduler is {profile.scheduler!r}, it must be {' or '.join(SCHEDULERS)}"
        )
    if profile.accelerator not in ACCELERATORS:
        raise DlbhpcError(
            f"{where}: accelerator is {profile.accelerator!r}, it must be "
            f"{' or '.join(ACCELERATORS)}"
        )
    for key in _POSITIVE:
        if getattr(profile, key) is not None:
            require_positive(f"{where}: {key}", getattr(profile, key))
    if profile.num_workers is not None and profile.num_workers < 0:
        raise DlbhpcError(f"{where}: num_workers is {profile.num_workers}, it must not be negative")
    texts = [getattr(profile, key) or "" for key in _TEXT]
    for text in (*texts, *profile.sbatch_lines):
        if any(ord(character) < 32 for character in text):
            raise DlbhpcError(f"{where}: {text!r} holds a control character")
    for text in texts:
        if '"' in text or "\\" in text:
            raise DlbhpcError(
                f"{where}: {text!r} holds a quote or a backslash, which sbatch misreads"
            )
    for line in profile.sbatch_lines:
        option = line.partition("=")[0].split()[0] if line.strip() else ""
        if not option.startswith("--"):
            raise DlbhpcError(f"{where}: {line!r} must be a long option, as --exclude=n1 is")
        if option in _OURS:
            raise DlbhpcError(f"{where}: sbatch_lines must not set {option}: the run decides it")
    return profile
