"""The upstream's composed configuration, out of what its process prints."""

from __future__ import annotations

import re

from dlbhpc.errors import DlbhpcError
from dlbhpc.layout import SURFACES
from dlbhpc.recipe import Upstream
from dlbhpc.upstream.record import record_bundled
from dlbhpc.upstream.surface import Surface, read_surface

_TOP_LEVEL = re.compile(r"([\w-]+):")


def upstream_surface(upstream: Upstream) -> Surface:
    """The recorded surface of an upstream; the bundled one's is read from its files."""
    if upstream.commit is None:
        return record_bundled(upstream)
    return read_surface(upstream.name, SURFACES)


def composed_yaml(printed: str, upstream: Upstream) -> str:
    """The YAML that ``--cfg job`` printed, without what imports printed before it.

    One upstream's import prints a line that is YAML as well: the configuration begins at the first
    line with a key that it is known to have. Raises :class:`DlbhpcError` when there is none.
    """
    known = upstream_surface(upstream).top_level()
    lines = printed.splitlines(keepends=True)
    for number, line in enumerate(lines):
        key = _TOP_LEVEL.match(line)
        if key and key[1] in known:
            return "".join(lines[number:])
    raise DlbhpcError(
        f"{upstream.name} printed no configuration of its own, but: {printed.strip()[:200]!r}"
    )
