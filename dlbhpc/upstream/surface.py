"""An upstream's configuration surface: the names of its config groups, options and keys.

Facts only, no value and no text of the upstream's, so that every command that we render can be
checked where no checkout is at hand.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dlbhpc.errors import DlbhpcError
from dlbhpc.records import from_plain, to_plain

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Config:
    """One file of a Hydra configuration.

    ``keys`` are the paths of its leaves from the root of the composed configuration (an empty
    mapping's ends with a dot), ``defaults`` the options that its defaults list chooses, by group.
    """

    keys: tuple[str, ...]
    defaults: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class Surface:
    """What can be named in an upstream's configuration.

    ``commit`` is what it was recorded at, and ``pinned`` says whether that is the upstream's pin;
    the bundled upstream has neither. ``resolvers`` are those that the upstream registers itself,
    ``hydra`` the options of Hydra's own groups that it chooses.
    """

    schema_version: int
    upstream: str
    commit: str | None
    pinned: bool
    config: str
    resolvers: tuple[str, ...]
    hydra: Mapping[str, str]
    primary: Config
    groups: Mapping[str, Mapping[str, Config]]

    def text(self) -> str:
        """As it lies on disk: the same bytes for the same facts."""
        return json.dumps(to_plain(self), indent=1, sort_keys=True) + "\n"

    def keys(self, chosen: Mapping[str, str]) -> frozenset[str]:
        """The leaves of the composed configuration, with options ``chosen`` by group."""
        return frozenset(self._keys(self.primary, chosen))

    def _keys(self, config: Config, chosen: Mapping[str, str]) -> set[str]:
        keys = set(config.keys)
        for group, options in config.defaults.items():
            for option in (chosen[group],) if group in chosen else options:
                keys |= self._keys(self.groups[group][option], chosen)
        return keys

    def top_level(self) -> frozenset[str]:
        """The first parts of all keys that a composed configuration may have."""
        configs = [self.primary, *(c for group in self.groups.values() for c in group.values())]
        return frozenset(key.partition(".")[0] for config in configs for key in config.keys)

    def default_groups(self) -> frozenset[str]:
        """The groups from which the defaults list chooses, and which an override may choose from.

        Those of options count as well: such an option is chosen where its group is in the list.
        """
        configs = [self.primary, *(c for group in self.groups.values() for c in group.values())]
        return frozenset(group for config in configs for group in config.defaults)


def read_surface(name: str, folder: Path) -> Surface:
    """The recorded surface of the upstream ``name``. Raises :class:`DlbhpcError`."""
    path = folder / f"{name}.json"
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise DlbhpcError(
            f"the surface {path} is missing: record it with python -m dlbhpc upstream surface "
            f"CHECKOUT --name {name}"
        ) from error
    except (OSError, ValueError) as error:
        raise DlbhpcError(f"the surface {path} cannot be read: {error}") from error
    surface = from_plain(Surface, data, str(path))
    if surface.upstream != name:
        raise DlbhpcError(f"the surface {path} is that of {surface.upstream}, not of {name}")
    if surface.schema_version != SCHEMA_VERSION:
        raise DlbhpcError(
            f"the surface {path} has schema version {surface.schema_version}, this version reads "
            f"{SCHEMA_VERSION}: record it anew with python -m dlbhpc upstream surface"
        )
    return surface


def write_surface(surface: Surface, folder: Path) -> Path:
    """Keep a surface; one of the pinned commit is not replaced by a neighbour's.

    Raises :class:`DlbhpcError`.
    """
    path = folder / f"{surface.upstream}.json"
    if path.exists() and not surface.pinned and read_surface(surface.upstream, folder).pinned:
        raise DlbhpcError(
            f"{path} was recorded at the pinned commit, the checkout is at {surface.commit}: "
            "check out the pin to record it anew"
        )
    path.write_text(surface.text(), encoding="utf-8")
    return path
