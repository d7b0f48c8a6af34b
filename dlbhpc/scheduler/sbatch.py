"""The batch script of a run: Slurm's options and the begin, tasks, end of one attempt."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

from dlbhpc.command import Launch
from dlbhpc.errors import DlbhpcError
from dlbhpc.layout import CHECKOUT, TEMPLATES
from dlbhpc.scheduler.memory import Memory, parse_memory
from dlbhpc.scheduler.profile import Profile
from dlbhpc.scheduler.queue import NAME_PREFIX, TAG_PREFIX

# Slurm cuts a longer name in some of its displays, and %-patterns or blanks in it confuse others.
_NAME = re.compile(r"[^A-Za-z0-9._-]")
_NAME_LENGTH = 100


def job_name(launch: Launch) -> str:
    """``dlbhpc-RECIPE-DATASET``, with what Slurm might misread replaced by ``-``."""
    parts = [launch.recipe.name, launch.recipe.dataset.name]
    if launch.trial is not None:
        parts.append("trial")
    return _NAME.sub("-", NAME_PREFIX + "-".join(parts))[:_NAME_LENGTH]


def sbatch_options(
    launch: Launch,
    profile: Profile,
    token: str | None = None,
    *,
    array: str | None = None,
) -> list[str]:
    """Every ``#SBATCH`` option of the job, in the order in which they are rendered.

    All GPUs of a node are visible to each of its tasks, since the upstreams count the devices they
    see: --gpus-per-node or --gres, never --gpus-per-task. ``array`` is the value of
    that option; the log of an array's element is named after both of its numbers, as submitit looks
    for it.
    """
    geometry = launch.geometry
    # rdlm starts its own processes: one task that sees all the GPUs.
    tasks = tasks_per_node(launch)
    log = "%j_0_log.out" if array is None else "%A_%a_0_log.out"
    options: list[tuple[str, object | None]] = [
        ("job-name", job_name(launch)),
        ("array", array),
        ("nodes", geometry.nodes),
        ("ntasks", tasks * geometry.nodes),
        ("ntasks-per-node", tasks),
        _gpus(launch, profile),
        ("cpus-per-task", _cpus_per_task(launch, profile)),
        ("time", profile.time),
        (profile.memory_option, _memory(launch, profile)),
        ("partition", profile.partition),
        ("account", profile.account),
        ("qos", profile.qos),
        ("constraint", profile.constraint),
        ("output", _quoted_path(launch.output.job / log)),
        ("open-mode", "append"),
        ("signal", f"B:USR2@{profile.grace_seconds}"),
        ("comment", token and f"{TAG_PREFIX}{token}"),
    ]
    lines = [f"--{key}={_option(value)}" for key, value in options if value is not None]
    return [*lines, "--requeue", *map(_site_line, profile.sbatch_lines)]


def tasks_per_node(launch: Launch) -> int:
    """One task per GPU, or one in all for the upstream that spawns its own processes (rdlm)."""
    return 1 if launch.recipe.upstream.spawns_ranks else launch.geometry.gpus_per_node


def render(
    launch: Launch,
    profile: Profile,
    token: str | None = None,
    python: str = sys.executable,
    *,
    array: str | None = None,
    elements: Mapping[int, Path] | None = None,
) -> str:
    """The text of the batch script. Pure: nothing is read but the template.

    Of an array, ``elements`` holds the folder of the run that each trains.

    ``token`` is the lease that the job runs under; a dry run has none. The local profile runs the
    same text under bash: only what starts the tasks differs.
    """
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # shell text; every value goes through the sh filter
    )
    environment.filters["sh"] = lambda value: shlex.quote(str(value))
    tasks = tasks_per_node(launch)
    return environment.get_template("sbatch.sh.j2").render(
        options=sbatch_options(launch, profile, token, array=array),
        token=token,
        title=f"{launch.recipe.name} on {launch.recipe.dataset.name}, profile {profile.name}",
        notes=notes(launch, profile),
        run=launch.output.folder,
        elements=elements,
        checkout=CHECKOUT,
        python=python,
        modules=profile.modules,
        prologue=profile.prologue,
        variables=variables(profile),
        scratch=profile.scratch,
        launcher="spawn" if profile.scheduler == "local" and launch.geometry.nodes == 1 else "srun",
        nodes=launch.geometry.nodes,
        ntasks=tasks * launch.geometry.nodes,
        ntasks_per_node=tasks,
        cpus_per_task=_cpus_per_task(launch, profile),
    )


def variables(profile: Profile) -> dict[str, str]:
    """The environment variables that the profile gives to the job."""
    interface = profile.network_interface
    names = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME") if interface else ()
    return {**dict.fromkeys(names, interface or ""), **profile.environment}


def notes(launch: Launch, profile: Profile) -> list[str]:
    """What the job asks for beyond what the profile says, as sentences."""
    if profile.memory is None or profile.memory_option == "mem":
        return []
    whole = parse_memory(profile.memory)
    parts, share = _shares(launch, profile), _memory(launch, profile)
    if share is None or share.amount * parts == whole.amount:
        return []
    return [
        f"{whole} of memory over {parts} {'CPUs' if 'cpu' in profile.memory_option else 'GPUs'} "
        f"of a node is rounded up to {share} each, {share.amount * parts}{share.unit} in all; "
        "a smaller unit divides more finely"
    ]


def _gpus(launch: Launch, profile: Profile) -> tuple[str, str]:
    kind = f"{profile.gpu_type}:" if profile.gpu_type else ""
    number = f"{kind}{launch.geometry.gpus_per_node}"
    return ("gres", f"gpu:{number}") if profile.gpu_option == "gres" else ("gpus-per-node", number)


def _memory(launch: Launch, profile: Profile) -> Memory | None:
    if profile.memory is None:
        return None
    return parse_memory(profile.memory).share(_shares(launch, profile))


def _shares(launch: Launch, profile: Profile) -> int:
    """In how many parts a node's memory is asked for."""
    if profile.memory_option == "mem-per-cpu":
        return (profile.cpus_per_task or 1) * launch.geometry.gpus_per_node
    return launch.geometry.gpus_per_node if profile.memory_option == "mem-per-gpu" else 1


def _cpus_per_task(launch: Launch, profile: Profile) -> int | None:
    if profile.cpus_per_task is None:
        return None
    per_task = launch.geometry.gpus_per_node // tasks_per_node(launch)
    return profile.cpus_per_task * per_task


def _site_line(line: str) -> str:
    option, equals, value = line.partition("=")
    return f"{option}{equals}{_option(value) if equals else ''}"


def _option(value: object) -> str:
    """Quoted for sbatch, which reads its option lines much as a shell does."""
    text = str(value)
    return text if re.fullmatch(r"[A-Za-z0-9_.,:@%/+=\[\]-]+", text) else f'"{text}"'


def _quoted_path(path: Path) -> str:
    # sbatch replaces %-patterns anywhere in the path, and knows no way to write a quote inside.
    for character in '%"\\\n':
        if character in str(path.parent):
            raise DlbhpcError(
                f"the output folder {path.parent} holds {character!r}, which sbatch cannot take "
                "in the path of a log: choose another --output"
            )
    return str(path)
