"""The batch script of a run: Slurm's options and the begin, tasks, end of one attempt."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

from dlbhpc.command import Launch
from dlbhpc.errors import DlbhpcError
from dlbhpc.layout import CHECKOUT, TEMPLATES
from dlbhpc.scheduler.profile import Profile
from dlbhpc.scheduler.queue import TAG_PREFIX

# Slurm cuts a longer name in some of its displays, and %-patterns or blanks in it confuse others.
_NAME = re.compile(r"[^A-Za-z0-9._-]")
_NAME_LENGTH = 100


def job_name(launch: Launch) -> str:
    """``dlbhpc-RECIPE-DATASET``, with what Slurm might misread replaced by ``-``."""
    parts = ["dlbhpc", launch.recipe.name, launch.recipe.dataset.name]
    if launch.trial is not None:
        parts.append("trial")
    return _NAME.sub("-", "-".join(parts))[:_NAME_LENGTH]


def sbatch_options(launch: Launch, profile: Profile, token: str | None = None) -> list[str]:
    """Every ``#SBATCH`` option of the job, in the order in which they are rendered.

    All GPUs of a node are visible to each of its tasks, since the upstreams count the devices they
    see: --gpus-per-node, never --gpus-per-task.
    """
    geometry = launch.geometry
    gpu = f"{profile.gpu_type}:" if profile.gpu_type else ""
    # rdlm starts its own processes: one task that sees all the GPUs.
    tasks = tasks_per_node(launch)
    options: list[tuple[str, object | None]] = [
        ("job-name", job_name(launch)),
        ("nodes", geometry.nodes),
        ("ntasks", tasks * geometry.nodes),
        ("ntasks-per-node", tasks),
        ("gpus-per-node", f"{gpu}{geometry.gpus_per_node}"),
        ("cpus-per-task", _cpus_per_task(launch, profile)),
        ("time", profile.time),
        ("mem", profile.memory),
        ("partition", profile.partition),
        ("account", profile.account),
        ("qos", profile.qos),
        ("constraint", profile.constraint),
        ("output", _quoted_path(launch.output.job / "%j_0_log.out")),
        ("open-mode", "append"),
        ("signal", f"B:USR2@{profile.grace_seconds}"),
        ("comment", token and f"{TAG_PREFIX}{token}"),
    ]
    lines = [f"--{key}={_option(value)}" for key, value in options if value is not None]
    return [*lines, "--requeue", *profile.sbatch_lines]


def tasks_per_node(launch: Launch) -> int:
    """One task per GPU, or one in all for the upstream that spawns its own processes (rdlm)."""
    return 1 if launch.recipe.upstream.spawns_ranks else launch.geometry.gpus_per_node


def render(
    launch: Launch, profile: Profile, token: str | None = None, python: str = sys.executable
) -> str:
    """The text of the batch script. Pure: nothing is read but the template.

    ``token`` is the lease that the job runs under; a dry run has none. The local profile runs the
    same text under bash: only what starts the tasks differs.
    """
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,  # shell text; every value goes through the sh filter
    )
    environment.filters["sh"] = lambda value: shlex.quote(str(value))
    tasks = tasks_per_node(launch)
    return environment.get_template("sbatch.sh.j2").render(
        options=sbatch_options(launch, profile, token),
        token=token,
        title=f"{launch.recipe.name} on {launch.recipe.dataset.name}, profile {profile.name}",
        run=launch.output.folder,
        checkout=CHECKOUT,
        python=python,
        launcher="spawn" if profile.scheduler == "local" and launch.geometry.nodes == 1 else "srun",
        nodes=launch.geometry.nodes,
        ntasks=tasks * launch.geometry.nodes,
        ntasks_per_node=tasks,
        cpus_per_task=_cpus_per_task(launch, profile),
    )


def _cpus_per_task(launch: Launch, profile: Profile) -> int | None:
    if profile.cpus_per_task is None:
        return None
    per_task = launch.geometry.gpus_per_node // tasks_per_node(launch)
    return profile.cpus_per_task * per_task


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
