"""Recording a surface: an upstream's YAML files are read, and none of its code.

Of Hydra's composition as much is known as the upstreams use: defaults lists of ``group: option``,
``group: [options]``, a sibling's name and ``override`` entries, and the package header. Anything
else is refused by name rather than misread.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from dlbhpc.errors import DlbhpcError
from dlbhpc.inputs.source import committed_texts, head_commit
from dlbhpc.layout import REFERENCE
from dlbhpc.recipe import Upstream
from dlbhpc.upstream.surface import SCHEMA_VERSION, Config, Surface

_PACKAGE = re.compile(r"^\s*#\s*@package\s+(\S+)\s*$", re.MULTILINE)
_RESOLVER = re.compile(r"\$\{\s*([\w.]+)\s*:")
_BUILT_IN = ("hydra", "now", "oc.")
"""Resolvers that Hydra and OmegaConf register themselves."""


def record_checkout(checkout: Path, upstream: Upstream) -> Surface:
    """The surface of a git checkout, as committed. Raises :class:`DlbhpcError`."""
    root = PurePosixPath(upstream.config).parent
    commit = head_commit(checkout)
    texts = committed_texts(checkout, str(root), ".yaml")
    return record(
        {PurePosixPath(path).relative_to(root): text for path, text in texts.items()},
        upstream,
        commit,
    )


def record_bundled(upstream: Upstream) -> Surface:
    """The surface of the bundled upstream, from its files as they are."""
    root = REFERENCE / PurePosixPath(upstream.config).parent
    texts = {
        PurePosixPath(path.relative_to(root).as_posix()): path.read_text(encoding="utf-8")
        for path in root.rglob("*.yaml")
    }
    return record(texts, upstream, None)


def record(texts: Mapping[PurePosixPath, str], upstream: Upstream, commit: str | None) -> Surface:
    """The surface of YAML ``texts``, by their paths below the config root.

    Raises :class:`DlbhpcError` for a file that is missing, is no mapping, or composes in a way that
    is not known here.
    """
    primary = PurePosixPath(upstream.config).name
    top = PurePosixPath(f"{primary}.yaml")
    # Other files beside the primary one are configurations of their own, or leftovers.
    bodies = {
        path: _load(text, path)
        for path, text in texts.items()
        if path == top or path.parent != top.parent
    }
    if top not in bodies:
        raise DlbhpcError(f"the configuration {upstream.config}.yaml of {upstream.name} is missing")
    groups: dict[str, dict[str, Config]] = {}
    hydra: dict[str, str] = {}
    for path in sorted(bodies):
        if path != top:
            group = groups.setdefault(str(path.parent), {})
            group[path.stem] = _config(path, texts[path], bodies[path])
        hydra |= _hydra(bodies[path])
    surface = Surface(
        schema_version=SCHEMA_VERSION,
        upstream=upstream.name,
        commit=commit,
        pinned=commit == upstream.commit,
        config=upstream.config,
        resolvers=tuple(sorted(set(_resolvers(bodies.values())))),
        hydra=hydra,
        primary=_config(top, texts[top], bodies[top]),
        groups=groups,
    )
    _check_defaults(surface)
    return surface


def _load(text: str, path: PurePosixPath) -> dict[str, Any]:
    import yaml

    try:
        body = yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        raise DlbhpcError(f"{path} is not valid YAML: {error}") from error
    if not isinstance(body, dict):
        raise DlbhpcError(f"{path} does not hold a mapping")
    return body


def _config(path: PurePosixPath, text: str, body: Mapping[str, Any]) -> Config:
    package = _package(path, text)
    content = {key: value for key, value in body.items() if key != "defaults"}
    defaults: dict[str, tuple[str, ...]] = {}
    for group, options in _defaults(path, body):
        defaults[group] = (*defaults.get(group, ()), *options)
    return Config(keys=tuple(sorted(_leaves(content, package))), defaults=defaults)


def _package(path: PurePosixPath, text: str) -> str:
    """Where a file's keys land: what its header says, else its group."""
    group = "" if str(path.parent) == "." else ".".join(path.parent.parts)
    header = _PACKAGE.search(text)
    if header is None or header[1] == "_group_":
        return group
    if header[1] == "_global_":
        return ""
    raise DlbhpcError(f"{path}: the package {header[1]} is not known to this recorder")


def _defaults(
    path: PurePosixPath, body: Mapping[str, Any]
) -> Iterator[tuple[str, tuple[str, ...]]]:
    for entry in body.get("defaults") or []:
        if entry == "_self_":
            continue
        if isinstance(entry, str):
            # A sibling in the same group.
            yield str(path.parent), (entry,)
            continue
        ((selector, options),) = entry.items()
        if selector.startswith("override "):
            continue
        group = selector.removeprefix("/")
        if "@" in group or " " in group or (not selector.startswith("/") and path.parent.parts):
            raise DlbhpcError(f"{path}: the default {selector!r} is not known to this recorder")
        yield group, tuple(options) if isinstance(options, list) else (str(options),)


def _hydra(body: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Options of Hydra's own groups, in which a plugin may have to be installed."""
    for entry in body.get("defaults") or []:
        if isinstance(entry, dict):
            ((selector, option),) = entry.items()
            if selector.startswith("override "):
                yield selector.removeprefix("override ").strip().removeprefix("/"), str(option)


def _leaves(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}" if path else str(key))
    elif path:
        yield f"{path}." if value == {} else path


def _resolvers(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        for name in _RESOLVER.findall(value):
            if not name.startswith(_BUILT_IN):
                yield name
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _resolvers(inner)
    elif not isinstance(value, (int, float, type(None))):
        for inner in value:
            yield from _resolvers(inner)


def _check_defaults(surface: Surface) -> None:
    configs = [surface.primary, *(c for group in surface.groups.values() for c in group.values())]
    for config in configs:
        for group, options in config.defaults.items():
            for option in options:
                if option not in surface.groups.get(group, {}):
                    raise DlbhpcError(
                        f"{surface.upstream} chooses {group}={option} by default, which its "
                        "configuration does not hold"
                    )
