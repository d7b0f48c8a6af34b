"""``dlbhpc demo``: a real training run survives a preemption, on this machine."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_RECIPE, _DATASET = "reference_mdlm", "pydoc"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--root", type=Path, metavar="DIR", help="project root (the checkout)")


def run(args: argparse.Namespace) -> int:
    from dlbhpc.cli import submit
    from dlbhpc.cli.launches import launch_of, request_of
    from dlbhpc.cli.report import report_of, text_of
    from dlbhpc.cli.start import start
    from dlbhpc.data import prepare_pydoc
    from dlbhpc.layout import Layout
    from dlbhpc.run.record import read_run
    from dlbhpc.scheduler.control import PREEMPT, Request, leave
    from dlbhpc.scheduler.profile import load_profile

    layout = Layout.at(args.root)
    prepare_pydoc(layout.root)
    command = ["--recipe", _RECIPE, "--dataset", _DATASET, "--cluster", "local", "--follow"]
    if args.root is not None:
        command += ["--root", str(layout.root)]
    print("$ python -m dlbhpc submit " + " ".join(command), flush=True)
    parser = argparse.ArgumentParser()
    submit.add_arguments(parser)
    profile = load_profile("local", layout.root)
    launch = launch_of(request_of(parser.parse_args(command), profile), profile)
    first_attempt = len(list(launch.output.attempts.glob("*"))) + 1
    preempted = False

    def preempt_in_the_middle(progress: Mapping[str, Any]) -> None:
        nonlocal preempted
        early = progress["step"] < progress["total"] // 2
        if preempted or early or progress["attempt"] != first_attempt:
            return
        preempted = True
        print(f"\n$ python -m dlbhpc preempt {_DATASET}/{_RECIPE}", flush=True)
        leave(launch.output.control, Request(PREEMPT, read_run(launch.output).grace_seconds))

    status = start(launch, profile, follow=True, on_progress=preempt_in_the_middle)
    print(text_of(report_of(launch.output)))
    if status == 0:
        print(
            "\nThe same on a cluster, from a checkout on its shared file system:\n"
            f"  {sys.executable} -m dlbhpc submit --recipe {_RECIPE} --cluster slurm "
            f"--output checkpoints/on_slurm/{_RECIPE}"
        )
    return status
