"""Composing every route with the upstream's own configuration, where a checkout is at hand."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from dlbhpc.errors import DlbhpcError
from dlbhpc.inputs.source import verify_checkout
from dlbhpc.layout import CHECKOUT, REFERENCE, Layout
from dlbhpc.recipe import Upstream
from dlbhpc.records import to_plain
from dlbhpc.upstream.composer import Task
from dlbhpc.upstream.routes import FAILED, OK, UNVERIFIED, Route, Verdict
from dlbhpc.upstream.surface import Surface

UPSTREAMS_VARIABLE = "DLBHPC_UPSTREAMS"
"""Environment variable that names the folder of checkouts, else ``upstreams`` under the root."""


def checkouts() -> Path:
    """The folder in which the upstreams' checkouts lie, each by its name."""
    named = os.environ.get(UPSTREAMS_VARIABLE)
    return Path(named).expanduser().resolve() if named else Layout.at().upstreams


def compose_routes(routes: Sequence[Route], surface: Surface, folder: Path) -> list[Verdict]:
    """The verdicts on ``routes``, all of the upstream of ``surface``, by real composition.

    One process composes them, since resolvers are registered once per process. Raises
    :class:`DlbhpcError` when it dies.
    """
    upstream = routes[0].recipe.upstream
    source = REFERENCE if upstream.commit is None else folder / upstream.name
    config = PurePosixPath(upstream.config)
    doubt = _doubt(source, upstream)
    if not (source / config.parent).is_dir():
        return [Verdict(route.name, UNVERIFIED, doubt) for route in routes]
    errors = _composed(
        Task(
            configs=str(source / config.parent),
            config=config.name,
            resolvers=surface.resolvers,
            launcher=surface.hydra.get("hydra/launcher"),
            commands=tuple(words for route in routes for words in route.commands),
        )
    )
    verdicts = []
    for route in routes:
        mine, errors = errors[: len(route.commands)], errors[len(route.commands) :]
        wrong = tuple(dict.fromkeys(error for error in mine if error is not None))
        excused = bool(doubt) and route.recipe.unverified is not None
        status = FAILED if wrong and not excused else UNVERIFIED if doubt else OK
        verdicts.append(Verdict(route.name, status, (*doubt, *wrong)))
    return verdicts


def _doubt(source: Path, upstream: Upstream) -> tuple[str, ...]:
    """Why a composition with this checkout does not count for the pin; empty where it does."""
    if upstream.commit is None or upstream.repository is None:
        return ()
    try:
        verify_checkout(source, upstream.commit, upstream.repository)
    except DlbhpcError as error:
        return (str(error),)
    return ()


def _composed(task: Task) -> list[str | None]:
    done = subprocess.run(
        [sys.executable, "-m", "dlbhpc.upstream.composer"],
        input=json.dumps(to_plain(task)),
        capture_output=True,
        text=True,
        cwd=CHECKOUT,
    )
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise DlbhpcError(f"composing {task.configs} failed: {last}")
    errors: list[str | None] = json.loads(done.stdout)
    return errors
