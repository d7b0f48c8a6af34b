"""The flags that choose a cluster profile and override its values."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from dlbhpc.errors import DlbhpcError

if TYPE_CHECKING:
    from dlbhpc.command import Launch
    from dlbhpc.scheduler.profile import Profile

_FLAGS: dict[str, tuple[type, str]] = {
    "partition": (str, "partitions to run in"),
    "account": (str, "whom the job is charged to"),
    "qos": (str, "quality of service"),
    "constraint": (str, "features that the nodes must have"),
    "time": (str, "limit: minutes, MM:SS, HH:MM:SS, D-HH, D-HH:MM, D-HH:MM:SS"),
    "memory": (str, "of each node, with K, M, G or T; 0 is all of it"),
    "gpu_type": (str, "type of GPU, as the site names it"),
    "cpus_per_task": (int, "CPUs of each GPU"),
    "grace_seconds": (int, "warning before the limit or a preemption"),
}


def add_profile_arguments(parser: argparse.ArgumentParser) -> None:
    """``--cluster``, and one flag for each value that changes from run to run."""
    parser.add_argument(
        "--cluster", metavar="PROFILE", help="cluster profile: see `dlbhpc profiles`"
    )
    group = parser.add_argument_group("cluster", "these go over the values of the cluster profile")
    for key, (kind, text) in _FLAGS.items():
        group.add_argument(
            "--" + key.replace("_", "-"),
            dest=f"profile_{key}",
            type=kind,
            metavar="N" if kind is int else "TEXT",
            help=text,
        )
    group.add_argument(
        "--sbatch-line",
        dest="profile_sbatch_lines",
        action="append",
        metavar="OPTION",
        help="one more option of sbatch: --sbatch-line=--exclude=n1 (repeatable)",
    )


def chosen_profile(args: argparse.Namespace) -> Profile:
    """The profile that the arguments choose, with what the flags say; needs ``args.root``."""
    from dlbhpc.scheduler.profile import load_profile

    given = {key: getattr(args, f"profile_{key}") for key in (*_FLAGS, "sbatch_lines")}
    flags = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in given.items()
        if value is not None
    }
    return load_profile(args.cluster, args.root, flags)


def check_limits(launch: Launch, profile: Profile) -> None:
    """Raise DlbhpcError for a geometry that the profile's nodes cannot hold."""
    geometry, name = launch.geometry, launch.recipe.name
    gpus, nodes = profile.gpus_per_node, profile.max_nodes
    if gpus is not None and geometry.gpus_per_node > gpus:
        raise DlbhpcError(
            f"the run wants {geometry.gpus_per_node} GPUs per node, nodes of the profile "
            f"{profile.name} have {gpus}: name --nodes and --gpus-per-node; "
            f"`dlbhpc plan --recipe {name} --gpus-per-node {gpus}` lists what is exact"
        )
    if nodes is not None and geometry.nodes > nodes:
        raise DlbhpcError(
            f"the run wants {geometry.nodes} nodes, the profile {profile.name} allows {nodes}: "
            f"name --nodes; `dlbhpc plan --recipe {name} --max-nodes {nodes}` lists "
            "what is exact"
        )
