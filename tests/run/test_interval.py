"""How often a run saves."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlbhpc.run.inputs import prepare_run
from dlbhpc.run.interval import Bounds, best_interval, choose_interval, interval_of
from dlbhpc.run.measured import measured_runs, pace, seconds_between_interruptions, spans_of
from dlbhpc.run.record import Run, write_records

BOUNDS = Bounds(default=900, least=60, most=3600)


def test_a_known_optimum() -> None:
    """Young's own relation: a save of 20 s and 2 h between interruptions make 537 s."""
    assert best_interval(20, 7200) == pytest.approx(536.66, abs=0.01)
    chosen = choose_interval(20, 7200, BOUNDS)
    assert chosen.seconds == 537
    assert "20 s a save x 7200 s between interruptions" in chosen.why


@given(st.floats(0.01, 100), st.floats(1000, 1e7))
def test_no_other_interval_loses_less(save: float, between: float) -> None:
    """First order: saves cost C/T of the time, an interruption T/2 of repeated work."""

    def lost(interval: float) -> float:
        return save / interval + interval / (2 * between)

    best = best_interval(save, between)
    assert all(lost(best) <= lost(best * factor) for factor in (0.5, 0.9, 1.1, 2))


@pytest.mark.parametrize(("save", "between"), [(None, 7200.0), (20.0, None), (None, None)])
def test_without_measurements_it_is_the_profiles(save: float | None, between: float | None) -> None:
    assert choose_interval(save, between, BOUNDS).seconds == 900


@pytest.mark.parametrize(
    ("save", "between", "seconds", "word"),
    [(0.01, 10, 60, "raised"), (600, 1e6, 3600, "lowered")],
)
def test_the_profiles_bounds_hold_and_are_said(
    save: float, between: float, seconds: int, word: str
) -> None:
    chosen = choose_interval(save, between, BOUNDS)
    assert chosen.seconds == seconds
    assert word in chosen.why


def attempt(run: Run, number: int, reason: str | None, saves: list[float], steps: int) -> None:
    """What an attempt of 100 seconds leaves behind."""
    folder = run.launch.output.attempt(number)
    folder.mkdir(parents=True)
    begun = {"attempt": number, "job_id": "1", "resumed_from": None, "time": 1000.0}
    (folder / "attempt.json").write_text(json.dumps(begun))
    events = [
        {"event": "saved", "step": steps, "seconds": seconds, "time": 1100.0} for seconds in saves
    ]
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    if reason is not None:
        (folder / "end.json").write_text(json.dumps({"reason": reason, "status": 0}))


def test_it_is_chosen_from_what_earlier_attempts_measured(run: Run) -> None:
    write_records(run)
    attempt(run, 1, "preempted", [1.0, 3.0], 10)
    attempt(run, 2, None, [2.0], 10)
    attempt(run, 3, "completed", [2.0], 10)
    spans = spans_of(run.launch.output)
    assert [span.interrupted for span in spans] == [True, True, False]
    assert seconds_between_interruptions(spans) == 150
    chosen = interval_of(run.launch, "local", Bounds(900, 1, 3600))
    assert chosen.seconds == round(math.sqrt(2 * 2.0 * 150))
    other = interval_of(run.launch, "another", Bounds(900, 1, 3600))
    assert other.seconds == 900, "interruptions are those of the profile"


def test_an_attempt_that_may_still_run_is_no_interruption(run: Run) -> None:
    attempt(run, 1, None, [2.0], 10)
    assert [span.interrupted for span in spans_of(run.launch.output)] == [False]


def test_ends_that_were_nobodys_fault_are_no_interruptions(run: Run) -> None:
    for number, reason in enumerate(("cancelled", "upstream failed", "completed", "fenced"), 1):
        attempt(run, number, reason, [2.0], 10)
    assert not any(span.interrupted for span in spans_of(run.launch.output))
    assert seconds_between_interruptions(spans_of(run.launch.output)) is None


def test_the_pace_is_that_of_the_same_geometry(run: Run) -> None:
    write_records(run)
    attempt(run, 1, "completed", [1.0], 50)
    found = measured_runs(run.launch.layout, lambda other: True)
    assert pace(run.launch.geometry, found) == pytest.approx(0.5)
    assert pace(replace(run.launch.geometry, nodes=7), found) is None


def test_a_damaged_run_tells_nothing(run: Run) -> None:
    write_records(run)
    run.launch.output.run.write_text("{")
    assert measured_runs(run.launch.layout, lambda other: True) == []


def test_an_attempt_that_said_nothing_is_left_out(run: Run) -> None:
    folder = run.launch.output.attempt(1)
    folder.mkdir(parents=True)
    (folder / "attempt.json").write_text(json.dumps({"attempt": 1, "time": 1000.0}))
    assert spans_of(run.launch.output) == ()


def test_the_identity_does_not_know_the_interval(run: Run) -> None:
    other = prepare_run(run.launch, "local", save_every_seconds=7, grace_seconds=30)
    assert other.identity == run.identity
