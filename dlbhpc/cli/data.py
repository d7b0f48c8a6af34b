"""``dlbhpc data``: prepare processed datasets."""

from __future__ import annotations

import argparse
from pathlib import Path

from dlbhpc.errors import DlbhpcError
from dlbhpc.layout import Layout

NAME = "data"
HELP = "prepare a dataset"

PREPARABLE = ("pydoc",)
PINNED = ("lm1b", "owt")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the sub-commands of ``data`` to ``parser``."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    prepare = actions.add_parser("prepare", help="tokenize a dataset and write its manifest")
    prepare.add_argument("dataset", help=f"one of: {', '.join(PREPARABLE)}")
    prepare.add_argument(
        "--root", type=Path, metavar="DIR", help="project root (default: this checkout)"
    )


def run(args: argparse.Namespace) -> int:
    """Prepare the named dataset."""
    if args.dataset in PINNED:
        raise DlbhpcError(
            f"preparing {args.dataset} is not in this version: it needs the pinned raw data "
            f"(no download is built in); `data prepare {PREPARABLE[0]}` prepares the bundled text"
        )
    if args.dataset not in PREPARABLE:
        raise DlbhpcError(
            f"unknown dataset {args.dataset!r}; data prepare knows: {', '.join(PREPARABLE)}"
        )
    from dlbhpc.data import prepare_pydoc

    prepare_pydoc(Layout.at(args.root).root)
    return 0
