"""Cluster profiles as files: where they are found, and how one builds on others.

They are a Hydra config group (``slurm/profiles``): a ``defaults`` list names the profiles that a
profile builds on. It is composed here by Hydra's rules and not by Hydra, which would make 43200 of
the time 12:00:00 (YAML 1.1 reads it as a number of base 60), could not say which file a value came
from, and takes half a second to import. A test holds the two equal.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dlbhpc.errors import DlbhpcError
from dlbhpc.layout import PROFILES, Layout

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_SELF = "_self_"


@dataclass(frozen=True)
class Composed:
    """The keys of a profile with their values, and the file that each value stands in.

    ``path`` is the profile's own file. Texts are as written.
    """

    path: Path
    values: Mapping[str, Any] = field(default_factory=dict)
    sources: Mapping[str, Path] = field(default_factory=dict)


def profile_folders(root: Path | None = None) -> tuple[Path, ...]:
    """Where profiles are looked for: the project root's, the user's, then the shipped ones."""
    project = Layout.at(root).root / "slurm" / "profiles"
    # Where the root is the checkout, its folder holds the shipped ones: the user's go over those.
    return (*([project] if project != PROFILES else []), *_user_folder(), PROFILES)


def list_profiles(folders: Sequence[Path]) -> dict[str, Path]:
    """Every profile's file by its name; of two with one name, the one that is found first."""
    found: dict[str, Path] = {}
    for folder in folders:
        for path in sorted(folder.glob("*.yaml")):
            if _NAME.fullmatch(path.stem):
                found.setdefault(path.stem, path)
    return dict(sorted(found.items()))


def compose(name: str, folders: Sequence[Path], numbers: frozenset[str]) -> Composed:
    """The profile of this name over what it builds on; ``numbers`` are the keys that hold numbers.

    Raises DlbhpcError for an unknown name, a damaged file, or profiles that build on each other.
    """
    files = list_profiles(folders)
    if name not in files:
        near = difflib.get_close_matches(name, files, n=1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        *first, last = map(str, folders)
        raise DlbhpcError(
            f"there is no cluster profile {name!r}{hint}: choose one of {', '.join(files)}, or "
            f"write NAME.yaml in {', '.join(first)}{' or ' if first else ''}{last}"
        )
    return _compose(files[name], files, numbers, ())


def _compose(
    path: Path, files: Mapping[str, Path], numbers: frozenset[str], above: tuple[Path, ...]
) -> Composed:
    if path in above:
        chain = " -> ".join(map(str, (*above, path)))
        raise DlbhpcError(f"cluster profile {path} builds on itself ({chain}): name another one")
    own = _read(path, numbers)
    defaults = own.pop("defaults", None) or []
    if not isinstance(defaults, list) or not all(isinstance(entry, str) for entry in defaults):
        raise DlbhpcError(f"cluster profile {path}: defaults must be a list of profile names")
    # Like Hydra: what a profile says itself goes over what it builds on, unless it says otherwise.
    if _SELF not in defaults:
        defaults = [*defaults, _SELF]
    values: dict[str, Any] = {}
    sources: dict[str, Path] = {}
    for entry in defaults:
        if entry == _SELF:
            part = Composed(path, own, dict.fromkeys(own, path))
        elif entry in files:
            part = _compose(files[entry], files, numbers, (*above, path))
        else:
            raise DlbhpcError(
                f"cluster profile {path} builds on {entry!r}, which is none of {', '.join(files)}"
            )
        for key, value in part.values.items():
            below = values.get(key)
            if isinstance(below, dict) and isinstance(value, dict):
                value = {**below, **value}
            values[key] = value
        sources |= part.sources
    return Composed(path, values, sources)


def _read(path: Path, numbers: frozenset[str]) -> dict[str, Any]:
    import yaml

    try:
        text = path.read_text(encoding="utf-8")
        values = yaml.safe_load(text)
        written = yaml.load(text, Loader=yaml.BaseLoader)
    except (OSError, UnicodeDecodeError) as error:
        raise DlbhpcError(f"cluster profile {path} cannot be read: {error}") from error
    except (yaml.YAMLError, ValueError) as error:
        raise DlbhpcError(f"cluster profile {path} is not valid YAML: {error}") from error
    if not isinstance(values, dict):
        raise DlbhpcError(f"cluster profile {path} must hold keys and values")
    return {
        str(key): value if key in numbers else _as_written(value, written.get(str(key)))
        for key, value in values.items()
    }


def _as_written(value: Any, written: Any) -> Any:
    """Times, sizes and names reach sbatch as written: YAML would make False of no."""
    if isinstance(value, dict) and isinstance(written, dict) and len(value) == len(written):
        # Keys too; both readers keep their order.
        pairs = zip(written.items(), value.values(), strict=True)
        return {key: _as_written(item, text) for (key, text), item in pairs}
    if isinstance(value, list) and isinstance(written, list):
        return [_as_written(*pair) for pair in zip(value, written, strict=True)]
    return value if value is None or written is None else written


def _user_folder() -> list[Path]:
    configured = os.environ.get("XDG_CONFIG_HOME", "")
    try:
        base = Path(configured) if configured.startswith("/") else Path.home() / ".config"
    except RuntimeError:  # a user without a home, as in some containers
        return []
    return [base / "dlbhpc" / "profiles"]
