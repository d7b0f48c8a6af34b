"""The node-local folder of one attempt: temporary files and compilers' caches, off shared disks."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from dlbhpc.own_folder import own_folder

SCRATCH_VARIABLE = "DLBHPC_SCRATCH"
"""Environment variable: the folder SCRATCH/dlbhpc-JOB-ATTEMPT, which each node makes for itself."""


def scratch_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Make this node's folder, and return the variables that send caches there; none without one.

    Caches of many ranks and jobs on one shared disk break each other (stale handles), and one of
    another attempt may be half written. Raises DlbhpcError when the folder cannot be ours.
    """
    named = environment.get(SCRATCH_VARIABLE)
    if named is None:
        return {}
    folder = Path(named)
    if environment.get("SLURM_LOCALID", environment.get("LOCAL_RANK", "0")) == "0":
        _remove_earlier(folder)
    own_folder(folder)
    return {
        "TMPDIR": str(folder),
        "TRITON_CACHE_DIR": str(folder / "triton"),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
    }


def _remove_earlier(folder: Path) -> None:
    """Remove what earlier attempts of this job, ended before they could, left on this node."""
    job, _, _ = folder.name.rpartition("-")
    for other in folder.parent.glob(f"{job}-*"):
        if other.name != folder.name:
            shutil.rmtree(other, ignore_errors=True)
