"""``dlbhpc profiles``: list the cluster profiles, or show one with the file of each value."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlbhpc.errors import DlbhpcError

if TYPE_CHECKING:
    from dlbhpc.scheduler.profile_files import Composed

SCHEMA_VERSION = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _add_common(parser, default=None)
    actions = parser.add_subparsers(dest="action", metavar="show")
    show = actions.add_parser("show", help="the values of one profile")
    show.add_argument("profile", help="its name")
    # Not set when they are left out: those given before `show` must survive.
    _add_common(show, default=argparse.SUPPRESS)


def _add_common(parser: argparse.ArgumentParser, default: object) -> None:
    parser.add_argument(
        "--root", type=Path, metavar="DIR", default=default, help="project root (the checkout)"
    )
    parser.add_argument("--json", action="store_true", default=default, help="one JSON object")


def run(args: argparse.Namespace) -> int:
    from dlbhpc.scheduler.profile import profile_of, read_profile
    from dlbhpc.scheduler.profile_files import profile_folders

    folders = profile_folders(args.root)
    if args.action == "show":
        composed = read_profile(args.profile, folders)
        profile_of(composed, {})
        print(json.dumps(_values(composed), indent=1) if args.json else _shown(composed))
        return 0
    rows = _rows(folders)
    if args.json:
        listed = {"folders": list(map(str, folders)), "profiles": rows}
        print(json.dumps({"schema_version": SCHEMA_VERSION, **listed}, indent=1))
    else:
        print(_table(rows, folders))
    return 0


def _rows(folders: Sequence[Path]) -> list[dict[str, Any]]:
    from dlbhpc.scheduler.profile import default_profile_name, profile_of, read_profile
    from dlbhpc.scheduler.profile_files import list_profiles

    default = default_profile_name()
    rows = []
    for name, path in list_profiles(folders).items():
        row: dict[str, Any] = {"name": name, "default": name == default, "file": str(path)}
        try:
            profile = profile_of(read_profile(name, folders), {})
            row |= {"scheduler": profile.scheduler, "error": None}
        except DlbhpcError as error:
            # One damaged profile must not hide the others.
            row |= {"scheduler": None, "error": str(error)}
        rows.append(row)
    return rows


def _table(rows: list[dict[str, Any]], folders: Sequence[Path]) -> str:
    cells = [
        (row["name"], row["scheduler"] or "damaged", row["error"] or row["file"])
        for row in ({"name": "profile", "scheduler": "for", "error": "file"}, *rows)
    ]
    widths = [max(len(line[column]) for line in cells) for column in range(2)]
    lines = [
        f"{name:<{widths[0]}}  {scheduler:<{widths[1]}}  {rest}" for name, scheduler, rest in cells
    ]
    default = next((row["name"] for row in rows if row["default"]), None)
    if default is not None:
        lines.append(f"without --cluster: {default}")
    lines.append(f"looked for in {', then '.join(map(str, folders))}")
    return "\n".join(lines)


def _values(composed: Composed) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "name": composed.path.stem,
        "file": str(composed.path),
        "values": {
            key: {"value": value, "file": str(composed.sources[key])}
            for key, value in composed.values.items()
        },
    }


def _shown(composed: Composed) -> str:
    lines = [f"{composed.path.stem}: {composed.path}"]
    width = max(map(len, composed.values), default=0)
    for key, value in composed.values.items():
        source = composed.sources[key]
        below = "" if source == composed.path else f"  ({source})"
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        lines.append(f"  {key:<{width}}  {text}{below}")
    return "\n".join(lines)
