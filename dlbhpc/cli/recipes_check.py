"""``dlbhpc recipes check``: do all rendered overrides fit the upstreams' configurations?"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from itertools import groupby

from dlbhpc.upstream.compose import checkouts, compose_routes
from dlbhpc.upstream.routes import FAILED, Route, Verdict, check_route, routes, surface_of

SCHEMA_VERSION = 1


def run(*, compose: bool, as_json: bool) -> int:
    """Check, print, and return 1 where something failed."""
    every = sorted(routes(), key=_upstream)
    found = {"surface": [check_route(route, surface_of(route)) for route in every]}
    if compose:
        found["composition"] = [
            verdict
            for _, same in groupby(every, key=_upstream)
            for verdict in _composed(list(same))
        ]
    if as_json:
        plain = {kind: [asdict(verdict) for verdict in found[kind]] for kind in found}
        print(json.dumps({"schema_version": SCHEMA_VERSION, **plain}, indent=1))
    else:
        for kind, verdicts in found.items():
            print(_text(kind, verdicts))
    failed = any(verdict.status == FAILED for verdicts in found.values() for verdict in verdicts)
    return 1 if failed else 0


def _composed(same: list[Route]) -> list[Verdict]:
    return compose_routes(same, surface_of(same[0]), checkouts())


def _upstream(route: Route) -> str:
    return route.recipe.upstream.name


def _text(kind: str, verdicts: list[Verdict]) -> str:
    width = max(len(verdict.route) for verdict in verdicts)
    lines = []
    for verdict in verdicts:
        lines.append(f"{verdict.route:<{width}}  {verdict.status}")
        lines += [f"    {line}" for note in verdict.notes for line in note.splitlines()]
    counts = Counter(verdict.status for verdict in verdicts)
    total = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
    return "\n".join([*lines, f"by {kind}: {total}"])
