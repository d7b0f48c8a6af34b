"""How often a run saves: what a save costs against what an interruption loses."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dlbhpc.command import Launch
from dlbhpc.run.measured import (
    measured_runs,
    same_training,
    save_seconds,
    seconds_between_interruptions,
    spans_of,
)


@dataclass(frozen=True)
class Interval:
    """Seconds from one save to the next, and a sentence that says why."""

    seconds: int
    why: str


@dataclass(frozen=True)
class Bounds:
    """What a profile says of the interval, in seconds: its default and its limits."""

    default: int
    least: int
    most: int


def best_interval(save: float, between: float) -> float:
    """sqrt(2 C M), in seconds: the interval that loses the least time to saves and repeated work.

    C is the seconds of a save, M the mean seconds between interruptions. First order, for C much
    smaller than M (Young 1974, "A first order approximation to the optimum checkpoint interval";
    Daly 2006, "A higher order estimate of the optimum checkpoint interval for restart dumps").
    """
    return math.sqrt(2 * save * between)


def choose_interval(save: float | None, between: float | None, bounds: Bounds) -> Interval:
    """The saving interval from what was measured, within the bounds; else the profile's."""
    if save is None or between is None:
        missing = "no save" if save is None else "no interruption"
        return Interval(bounds.default, f"the profile's: {missing} was measured yet")
    best = best_interval(save, between)
    seconds = round(min(max(best, bounds.least), bounds.most))
    why = f"sqrt(2 x {save:.3g} s a save x {between:.4g} s between interruptions) = {best:.4g} s"
    if best < bounds.least:
        why += f", raised to the profile's least, {bounds.least} s"
    if best > bounds.most:
        why += f", lowered to the profile's most, {bounds.most} s"
    return Interval(seconds, why)


def interval_of(launch: Launch, profile: str, bounds: Bounds) -> Interval:
    """The saving interval of a run that is about to be submitted on a profile.

    A save is measured on the run itself, else on others that train the same; interruptions on
    every run of that profile, since they are the cluster's and not the run's.
    """
    runs = measured_runs(
        launch.layout, lambda run: run.profile == profile or same_training(launch, run)
    )
    alike = [s for measured in runs if same_training(launch, measured.run) for s in measured.spans]
    there = [s for measured in runs if measured.run.profile == profile for s in measured.spans]
    own = save_seconds(spans_of(launch.output))
    save = save_seconds(alike) if own is None else own
    return choose_interval(save, seconds_between_interruptions(there), bounds)
