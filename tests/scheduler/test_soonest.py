"""What `sbatch --test-only` says, and which geometry follows from it."""

from __future__ import annotations

from datetime import datetime

import pytest

from dlbhpc.errors import DlbhpcError
from dlbhpc.geometry import Geometry
from dlbhpc.scheduler.soonest import (
    MOST_QUESTIONS,
    Expected,
    expected,
    parse_start,
    shapes,
    soonest,
)

ANSWER = (
    "sbatch: Job 27 to start at 2026-11-30T20:01:02 using 4 processors on nodes n[1-2] in "
    "partition requeue\nsbatch:   Preempts: 21\n"
)
START = datetime(2026, 11, 30, 20, 1, 2)


def geometry(nodes: int, gpus: int, batch: int = 1, accumulation: int = 1) -> Geometry:
    return Geometry(accumulation, nodes, gpus, batch)


@pytest.mark.parametrize(
    ("answer", "start"),
    [
        (ANSWER, START),
        ("warning: something\n" + ANSWER, START),
        ("allocation failure: Requested node configuration is not available\n", None),
        ("", None),
        ("sbatch: Job x to start at never", None),
    ],
)
def test_the_start_is_read_from_slurms_words(answer: str, start: datetime | None) -> None:
    assert parse_start(answer) == start


def test_the_finish_is_known_only_where_the_pace_is() -> None:
    known = expected(geometry(1, 4), ANSWER, total_steps=7200, steps_per_second=2.0)
    assert known.finish == datetime(2026, 11, 30, 21, 1, 2)
    assert expected(geometry(1, 4), ANSWER, 7200, None).finish is None
    assert expected(geometry(1, 4), ANSWER, None, 2.0).finish is None


def test_a_refusal_keeps_slurms_words() -> None:
    refused = expected(geometry(9, 4), "allocation failure: too much\n", 10, 1.0)
    assert (refused.start, refused.refusal) == (None, "allocation failure: too much")


def at(minute: int, second: int = 0) -> datetime:
    return datetime(2026, 11, 30, 20, minute, second)


def test_the_earliest_finish_wins_even_against_an_earlier_start() -> None:
    small = Expected(geometry(1, 1), at(0), at(50))
    large = Expected(geometry(2, 4), at(20), at(30))
    assert soonest([small, large]) is large


def test_one_unknown_pace_makes_the_start_decide() -> None:
    known = Expected(geometry(2, 4), at(20), at(30))
    unknown = Expected(geometry(1, 1), at(0), None)
    assert soonest([known, unknown]) is unknown


def test_starts_within_a_minute_are_equal_and_the_larger_world_is_taken() -> None:
    small = Expected(geometry(1, 1), at(0, 59), None)
    large = Expected(geometry(2, 4), at(1, 1), None)
    late = Expected(geometry(4, 4), at(2, 0), None)
    assert soonest([small, large, late]) is large


def test_what_slurm_refuses_is_never_taken() -> None:
    refused = Expected(geometry(4, 4), None, None, "no such nodes")
    possible = Expected(geometry(1, 1), at(9), None)
    assert soonest([refused, possible]) is possible
    with pytest.raises(DlbhpcError, match=r"start no exact geometry: no such nodes$"):
        soonest([refused, refused])


def test_each_shape_is_asked_about_once_with_its_best_geometry() -> None:
    best_first = [geometry(1, 4, 4, 1), geometry(1, 4, 2, 2), geometry(2, 4, 2, 1)]
    assert shapes(best_first) == [best_first[0], best_first[2]]
    many = [geometry(nodes, gpus) for nodes in range(1, 9) for gpus in range(1, 9)]
    assert len(shapes(many)) == MOST_QUESTIONS
