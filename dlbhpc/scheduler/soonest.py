"""Which exact geometry a cluster would start, and finish, first."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta

from dlbhpc.errors import DlbhpcError
from dlbhpc.geometry import Geometry
from dlbhpc.scheduler.queue import input_variables

MOST_QUESTIONS = 24
"""How many geometries Slurm is asked about: each question costs its controller a plan."""

_EQUAL = timedelta(minutes=1)
_AT_A_TIME = 4
_ANSWER_SECONDS = 60
_START = re.compile(r"^sbatch: Job \d+ to start at (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d) ", re.MULTILINE)


@dataclass(frozen=True)
class Expected:
    """When a geometry would start and finish, in the cluster's local time; None where unknown.

    ``refusal`` holds Slurm's words where it would not take the job at all.
    """

    geometry: Geometry
    start: datetime | None
    finish: datetime | None
    refusal: str = ""


def shapes(geometries: Sequence[Geometry]) -> list[Geometry]:
    """The best geometry of each shape: Slurm sees nodes and GPUs only, not what is done on them.

    ``geometries`` are best first; no more than can be asked about.
    """
    best: dict[tuple[int, int], Geometry] = {}
    for geometry in geometries:
        best.setdefault((geometry.nodes, geometry.gpus_per_node), geometry)
    return list(best.values())[:MOST_QUESTIONS]


def parse_start(answer: str) -> datetime | None:
    """The start in what ``sbatch --test-only`` says (on standard error); None if it names none."""
    found = _START.search(answer)
    return datetime.fromisoformat(found[1]) if found else None


def expected(
    geometry: Geometry, answer: str, total_steps: int | None, steps_per_second: float | None
) -> Expected:
    """What Slurm's answer means for a geometry, with the pace where it was measured."""
    start = parse_start(answer)
    if start is None:
        return Expected(geometry, None, None, answer.strip() or "sbatch gave no answer")
    if total_steps is None or steps_per_second is None:
        return Expected(geometry, start, None)
    return Expected(geometry, start, start + timedelta(seconds=total_steps / steps_per_second))


def soonest(options: Sequence[Expected]) -> Expected:
    """The one to take: the earliest finish, where every finish is known; else the earliest start.

    Starts within one minute count as equal, and then the larger world is taken, since it trains
    faster. Raises DlbhpcError with Slurm's words when it would start none.
    """
    starts = [option.start for option in options if option.start is not None]
    if not starts:
        words = "; ".join(dict.fromkeys(option.refusal for option in options))
        raise DlbhpcError(f"Slurm would start no exact geometry: {words}")
    finishes = [option.finish for option in options if option.finish is not None]
    if len(finishes) == len(starts):
        first = min(finishes)
        equal = [option for option in options if option.finish == first]
    else:
        latest = min(starts) + _EQUAL
        equal = [option for option in options if option.start and option.start <= latest]
    return max(equal, key=lambda option: option.geometry.world)


def ask(scripts: Sequence[str]) -> list[str]:
    """What ``sbatch --test-only`` says to each batch script. Raises DlbhpcError without sbatch."""
    with ThreadPoolExecutor(_AT_A_TIME) as threads:
        return list(threads.map(_test_only, scripts))


def _test_only(script: str) -> str:
    unset = set(input_variables())
    environment = {key: value for key, value in os.environ.items() if key not in unset}
    try:
        done = subprocess.run(
            ["sbatch", "--test-only"],
            input=script,
            env=environment,
            capture_output=True,
            text=True,
            timeout=_ANSWER_SECONDS,
        )
    except FileNotFoundError as error:
        raise DlbhpcError(
            "there is no sbatch on this machine: ask from a login node of the cluster"
        ) from error
    except subprocess.TimeoutExpired:
        return "sbatch did not answer within a minute"
    return done.stderr
