"""`python slurm/devcluster up|down|status|env [FOLDER]`: a real Slurm on this machine."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
if __package__ != "slurm.devcluster":  # run by its path, as make does
    sys.path.insert(0, str(CHECKOUT))

from dlbhpc.errors import DlbhpcError  # noqa: E402
from dlbhpc.exit_status import USAGE  # noqa: E402
from slurm.devcluster.cluster import Cluster  # noqa: E402
from slurm.devcluster.config import PARTITIONS, ClusterConfig  # noqa: E402

FOLDER = CHECKOUT / ".devcluster"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="devcluster", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    up = commands.add_parser("up", help="start a cluster and wait until it is ready")
    for field in fields(ClusterConfig):
        flag = "--" + field.name.replace("_", "-")
        if field.type == "bool":
            action = argparse.BooleanOptionalAction
            up.add_argument(flag, action=action, default=field.default)
        else:
            up.add_argument(flag, type=int, default=field.default, metavar="N")
    others = [
        commands.add_parser("down", help="end it and everything that runs on it"),
        commands.add_parser("status", help="print its nodes, its jobs, and daemons that have died"),
        commands.add_parser("env", help="print the shell lines that point Slurm's commands at it"),
    ]
    for command in [up, *others]:
        command.add_argument("folder", type=Path, nargs="?", default=FOLDER)
    arguments = parser.parse_args(argv)
    try:
        return _run(arguments)
    except DlbhpcError as error:
        print(f"ERROR: {error}", file=sys.stderr)
        return USAGE


def _run(arguments: argparse.Namespace) -> int:
    folder: Path = arguments.folder
    if arguments.command == "up":
        config = ClusterConfig(
            **{f.name: getattr(arguments, f.name) for f in fields(ClusterConfig)}
        )
        cluster = Cluster.start(folder, config)
        print(
            f"{config.nodes} nodes with {config.gpus_per_node} GPUs each are up; partitions: "
            f"{', '.join(partition.name for partition in PARTITIONS)}\n"
            f"To use them:  . {cluster.place.env_file}"
        )
        return 0
    cluster = Cluster.load(folder)
    if arguments.command == "down":
        cluster.stop()
    elif arguments.command == "env":
        print(cluster.place.env_file.read_text(encoding="utf-8"), end="")
    elif dead := cluster.dead_daemons():
        print(f"dead: {', '.join(dead)}")
        return 1
    else:
        print(cluster.run("sinfo"), cluster.run("squeue"), sep="\n", end="")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
