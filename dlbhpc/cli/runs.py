"""How the commands name a run."""

from __future__ import annotations

import argparse
from pathlib import Path

from dlbhpc.errors import DlbhpcError
from dlbhpc.layout import Layout, OutputLayout


def add_run_argument(parser: argparse.ArgumentParser) -> None:
    """The arguments that name one run."""
    parser.add_argument(
        "run",
        metavar="RUN",
        help="a run's folder, DATASET/RECIPE, or RECIPE (trials/DATASET/RECIPE for a trial)",
    )
    parser.add_argument("--root", type=Path, metavar="DIR", help="project root (the checkout)")


def find_run(name: str, layout: Layout) -> OutputLayout:
    """The run that a user names; raises DlbhpcError when there is none, or more than one."""
    for folder in (Path(name), layout.root / name):
        if (folder / "run.json").is_file():
            return OutputLayout(folder.resolve())
    from dlbhpc.run.record import run_folders

    wanted = Path(name).parts
    runs = run_folders(layout)
    found = [run for run in runs if run.folder.parts[-len(wanted) :] == wanted]
    # A name without `trials` in it means the locked run where there is one.
    found = [run for run in found if not run.folder.is_relative_to(layout.trials)] or found
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(str(run.folder.relative_to(layout.root)) for run in found)
        raise DlbhpcError(f"{name} names more than one run: {names}; give the folder")
    raise DlbhpcError(
        f"there is no run {name} under {layout.checkpoints}: `dlbhpc status` lists them"
    )
