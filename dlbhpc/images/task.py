"""A command as it runs in an image: what it may see of the host, and which variables go along."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dlbhpc.errors import DlbhpcError
from dlbhpc.images.program import without_settings

GPU_FLAGS: dict[str, tuple[str, ...]] = {"nv": ("--nv",), "rocm": ("--rocm",), "none": ()}

PASSED = frozenset(
    # Which devices a task sees
    "CUDA_VISIBLE_DEVICES NVIDIA_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES HIP_VISIBLE_DEVICES "
    "GPU_DEVICE_ORDINAL CUDA_DEVICE_ORDER "
    # Who the task is: what Lightning and torch read under Slurm, and from our own launcher
    "SLURM_JOB_ID SLURM_JOBID SLURM_JOB_NAME SLURM_JOB_NODELIST SLURM_NODELIST SLURM_NNODES "
    "SLURM_JOB_NUM_NODES SLURM_NTASKS SLURM_NPROCS SLURM_NTASKS_PER_NODE SLURM_TASKS_PER_NODE "
    "SLURM_PROCID SLURM_LOCALID SLURM_NODEID SLURM_STEP_ID SLURM_STEPID SLURM_STEP_NODELIST "
    "SLURM_STEP_NUM_NODES SLURM_STEP_NUM_TASKS SLURM_STEP_TASKS_PER_NODE SLURM_CPUS_PER_TASK "
    "SLURM_CPUS_ON_NODE SLURM_GPUS_ON_NODE SLURM_GPUS_PER_NODE SLURM_RESTART_COUNT "
    "SLURMD_NODENAME SLURM_LAUNCH_NODE_IPADDR "
    "LOCAL_RANK NODE_RANK RANK WORLD_SIZE LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT "
    # Where caches and temporary files go, and how many threads to start
    "TMPDIR TRITON_CACHE_DIR TORCHINDUCTOR_CACHE_DIR OMP_NUM_THREADS MKL_NUM_THREADS "
    "GLOO_SOCKET_IFNAME".split()
)
"""Variables that enter an image, by name. Not here, for one: SLURM_ARRAY_*, which change what some
upstreams do."""

PASSED_PREFIXES = ("NCCL_", "TORCH_NCCL_", "RCCL_", "UCX_", "FI_", "DLBHPC_")
"""Families of variables that enter: a site's settings of its network, and our own."""

_OF_THE_IMAGE = frozenset("PATH LD_LIBRARY_PATH HOME PYTHONPATH PYTHONHOME".split())
"""Variables that a profile may set for the host's programs, and that would break the image's."""

_PREFIX = {"apptainer": "APPTAINERENV_", "singularity": "SINGULARITYENV_"}
"""Before a variable's name, these make it enter."""


@dataclass(frozen=True)
class RunImage:
    """The image that a run goes through, and how: part of the run's record.

    ``program`` is apptainer or singularity, ``mount`` how the site mounts an image (kernel, fuse,
    unpacked), ``gpu`` which driver's libraries come in (nv, rocm, none). ``source`` is where the
    frozen source lies in it. ``variables`` are the names that the site's profile adds to those that
    enter.
    """

    name: str
    content_sha256: str
    program: str
    mount: str
    gpu: str
    source: str
    variables: tuple[str, ...] = ()


@dataclass(frozen=True)
class Bind:
    """A folder of the host, under the same path in the image."""

    path: Path
    writable: bool = False

    @property
    def text(self) -> str:
        """As --bind takes it. Raises DlbhpcError for a path that it would read as several words."""
        if "," in str(self.path) or ":" in str(self.path):
            raise DlbhpcError(
                f"the path {self.path} holds a comma or a colon, which no image can be bound to: "
                "choose another --root, or rename the folder"
            )
        return f"{self.path}:{self.path}:{'rw' if self.writable else 'ro'}"


def passed_variables(environment: Mapping[str, str], more: Collection[str] = ()) -> dict[str, str]:
    """What of the host's environment enters the image; ``more`` are names besides the table's."""
    named = (PASSED | set(more)) - _OF_THE_IMAGE
    return {
        key: value
        for key, value in environment.items()
        if key in named or key.startswith(PASSED_PREFIXES)
    }


def enter(
    image: RunImage,
    file: Path,
    argv: Sequence[str],
    *,
    own: Mapping[str, str],
    host: Mapping[str, str],
    binds: Iterable[Bind],
    home: Path,
    source: Path,
) -> tuple[list[str], dict[str, str]]:
    """The command that runs ``argv`` in the image, and the environment to start it with.

    ``file`` is the SIF file or the folder that it was unpacked to. ``own`` are the run's variables,
    which enter all; of ``host``, those of the table and of the profile. Whatever names the host's
    ``source`` names the frozen one inside. Nothing else of the host is seen but the binds, the
    node's /tmp, and what the site's administrator always mounts.
    """
    words = [_inside(word, source, image.source) for word in ("python", *argv[1:])]
    command = [image.program, "exec", "--cleanenv", "--home", str(home)]
    command += ["--pwd", image.source, *GPU_FLAGS[image.gpu]]
    for bind in binds:
        command += ["--bind", bind.text]
    inside = {
        **passed_variables(host, image.variables),
        "PYTHONNOUSERSITE": "1",
        **{key: _inside(value, source, image.source) for key, value in own.items()},
    }
    # Variables of their own rather than --env, which splits its values at commas.
    outside = without_settings(host, keep=image.variables)
    outside |= {f"{_PREFIX[image.program]}{key}": value for key, value in inside.items()}
    return [*command, str(file), *words], outside


def _inside(text: str, source: Path, target: str) -> str:
    """``text`` with the host's source folder named as it is in the image."""
    return re.sub(rf"{re.escape(str(source))}(?![\w.-])", lambda _: target, text)
