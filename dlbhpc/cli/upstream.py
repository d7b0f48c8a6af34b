"""``dlbhpc upstream``: record what an upstream's configuration has."""

from __future__ import annotations

import argparse
from pathlib import Path

from dlbhpc.errors import DlbhpcError
from dlbhpc.layout import SURFACES
from dlbhpc.recipe import Upstream, list_recipes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    surface = actions.add_parser(
        "surface",
        help="record the names of a checkout's config groups and keys",
        description="Record the names of a checkout's config groups, options and keys, against "
        "which `recipes check` proves our overrides. Its YAML files are read as committed; none of "
        "its code runs.",
    )
    surface.add_argument("checkout", type=Path, help="a git checkout of the upstream")
    surface.add_argument("--name", help="of the upstream (default: the checkout's folder)")


def run(args: argparse.Namespace) -> int:
    from dlbhpc.upstream.record import record_checkout
    from dlbhpc.upstream.surface import write_surface

    checkout = args.checkout.resolve()
    surface = record_checkout(checkout, _upstream(args.name or checkout.name))
    path = write_surface(surface, SURFACES)
    options = sum(len(group) for group in surface.groups.values())
    at = "its pin" if surface.pinned else "not its pin"
    print(f"{surface.upstream} at {surface.commit} ({at}): {options} options of {path}")
    return 0


def _upstream(name: str) -> Upstream:
    known = {
        recipe.upstream.name: recipe.upstream for recipe in list_recipes() if recipe.upstream.commit
    }
    if name not in known:
        raise DlbhpcError(
            f"{name!r} is no pinned upstream: name one with --name: {', '.join(sorted(known))}"
        )
    return known[name]
