"""What the values of a cluster profile may be, key by key.

Everything that a user can name here ends in a batch script. It is carried there exactly, or refused
with a sentence; neither sbatch nor the shell ever reads it as more than a value.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from dlbhpc.errors import DlbhpcError
from dlbhpc.scheduler.memory import parse_memory
from dlbhpc.scheduler.times import parse_time

Check = Callable[[Any], Iterator[str]]
"""Yields what is wrong with a value, as the end of a sentence."""

_LONGEST = 1000
"""sbatch reads an option line into a buffer of 8 KiB and does not look where that ends."""

LEAST_GRACE_SECONDS = 60
"""Slurm looks at its clock about once a minute: a shorter warning may leave no time to save."""

# Options that the batch script sets, or that would undo what it sets; and the key to use instead.
_OURS = {
    **dict.fromkeys(
        "array chdir comment cpus-per-gpu dependency error export export-file gpu-bind gpus "
        "gpus-per-node gpus-per-socket gpus-per-task gres help input job-name no-kill no-requeue "
        "nodes ntasks ntasks-per-core ntasks-per-gpu ntasks-per-node ntasks-per-socket open-mode "
        "output parsable quiet requeue signal test-only usage version wait wrap".split(),
        "the run decides it",
    ),
    **{
        option: f"use the key {key}"
        for option, key in {
            "account": "account",
            "constraint": "constraint",
            "cpus-per-task": "cpus_per_task",
            "mem": "memory",
            "mem-per-cpu": "memory and memory_option",
            "mem-per-gpu": "memory and memory_option",
            "partition": "partition",
            "qos": "qos",
            "time": "time",
        }.items()
    },
}

_OWN_VARIABLES = frozenset(
    "CUDA_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES ZE_AFFINITY_MASK MASTER_ADDR MASTER_PORT RANK "
    "LOCAL_RANK NODE_RANK WORLD_SIZE TMPDIR TRITON_CACHE_DIR TORCHINDUCTOR_CACHE_DIR "
    "BASHOPTS BASH_ENV ENV EUID IFS PPID SHELLOPTS UID attempt asked run status tasks".split()
)
_OWN_PREFIXES = ("SLURM_", "SBATCH_", "SRUN_", "DLBHPC_", "SUBMITIT_", "PMI_", "PMIX_", "PYTHON")


def _one_of(*choices: str) -> Check:
    def check(value: str) -> Iterator[str]:
        if value not in choices:
            yield f"is {value!r}, it must be {' or '.join(choices)}"

    return check


def _between(least: int, most: float = float("inf")) -> Check:
    def check(value: int) -> Iterator[str]:
        if value < least:
            yield f"is {value}: it must be at least {least}"
        if value > most:
            yield f"is {value}: it must be at most {most}"

    return check


def _line(value: str) -> Iterator[str]:
    if not value.strip():
        yield "is empty: leave it out"
    if len(value) > _LONGEST:
        yield f"is longer than {_LONGEST} characters"
    if any(unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp") for character in value):
        yield f"is {value!r}, which holds a control character"


def _text(value: str) -> Iterator[str]:
    yield from _line(value)
    if '"' in value or "\\" in value:
        yield f"is {value!r}, which holds a quote or a backslash, which sbatch misreads"


def _matching(pattern: str, what: str) -> Check:
    def check(value: str) -> Iterator[str]:
        yield from _line(value)
        if not re.fullmatch(pattern, value):
            yield f"is {value!r}, which is not {what}"

    return check


def _parsed(parse: Callable[[str], object]) -> Check:
    def check(value: str) -> Iterator[str]:
        try:
            parse(value)
        except DlbhpcError as error:
            yield f"is wrong: {error}"

    return check


def _each(check: Check) -> Check:
    def check_all(values: tuple[str, ...]) -> Iterator[str]:
        for value in values:
            yield from check(value)

    return check_all


def _sbatch_line(line: str) -> Iterator[str]:
    yield from _text(line)
    option, _, _ = line.partition("=")
    if not re.fullmatch(r"--[a-z][a-z-]*", option):
        yield f"is {line!r}: it must be one long option, as --exclude=n1 is"
        return
    # sbatch takes an abbreviation for the option that it begins.
    for ours, instead in _OURS.items():
        if ours.startswith(option.removeprefix("--")):
            yield f"must not set --{ours}: {instead}"
            return


def _scratch(value: str) -> Iterator[str]:
    yield from _line(value)
    if not value.startswith("/") or ".." in value.split("/"):
        yield f"is {value!r}, which is no absolute path"
    if "$" in value or "%" in value:
        yield (
            f"is {value!r}, and nothing in it would be replaced: name the folder that every node "
            "has; each job makes one of its own below it"
        )


def _environment(values: Mapping[str, str]) -> Iterator[str]:
    for name, value in values.items():
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            yield f"names the variable {name!r}: letters, digits and _ only"
        elif name in _OWN_VARIABLES or name.startswith(_OWN_PREFIXES):
            yield f"must not set {name}: the job decides it"
        elif "\0" in value:
            yield f"sets {name} to {value!r}, which no environment can hold"


CHECKS: dict[str, Check] = {
    "scheduler": _one_of("local", "slurm"),
    "grace_seconds": _between(1, 65535),  # what --signal takes
    "save_every_minutes": _between(1),
    "min_save_every_minutes": _between(1),
    "max_save_every_minutes": _between(1),
    "partition": _text,
    "account": _text,
    "qos": _text,
    "constraint": _text,
    "time": _parsed(parse_time),
    "max_nodes": _between(1),
    "gpus_per_node": _between(1),
    "gpu_type": _matching(r"[A-Za-z0-9_.-]+", "a type of GPU: letters, digits, _ . -"),
    "gpu_option": _one_of("gpus-per-node", "gres"),
    "cpus_per_task": _between(1),
    "memory": _parsed(parse_memory),
    "memory_option": _one_of("mem", "mem-per-cpu", "mem-per-gpu"),
    "sbatch_lines": _each(_sbatch_line),
    "modules": _each(
        # `module` is itself a shell function that evaluates text, so nothing else reaches it.
        _matching(r"[A-Za-z0-9][A-Za-z0-9._/+@:=-]*", "the name of a module")
    ),
    "prologue": _each(_line),
    "environment": _environment,
    "scratch": _scratch,
    "network_interface": _matching(r"[A-Za-z0-9_.:,-]+", "a network interface, as ib0 is"),
    "num_workers": _between(0),
    "container": _one_of("none", "apptainer", "singularity"),
    "container_mount": _one_of("kernel", "fuse", "unpacked"),
    "container_gpu": _one_of("nv", "rocm", "none"),
    "accelerator": _one_of("cuda", "cpu"),
}
"""By key of a profile; each key has one."""


def check_values(values: Mapping[str, Any], where: Callable[[str], str]) -> None:
    """Raise DlbhpcError for the first value that may not be; ``where`` names a key's place."""
    for key, check in CHECKS.items():
        if values.get(key) is not None:
            for complaint in check(values[key]):
                raise DlbhpcError(f"{where(key)} {complaint}")
