"""Trials: toy sizes, marked and never the locked run."""

from __future__ import annotations

import pytest

from dlbhpc.errors import DlbhpcError
from dlbhpc.recipe import parse_sizes, read_recipe, trial_of


def test_sizes_are_parsed() -> None:
    assert parse_sizes("") == {}
    assert parse_sizes("steps=20, batch=4") == {"steps": 20, "batch": 4}


@pytest.mark.parametrize(
    "text", ["steps", "steps=", "steps=x", "steps=-1", "steps=0", "steps=1.5", "=3x",
             "steps=1,steps=2", "steps=²"],
)  # fmt: skip
def test_a_size_that_is_no_positive_number_is_refused(text: str) -> None:
    with pytest.raises(DlbhpcError, match="--trial"):
        parse_sizes(text)


def test_a_trial_is_marked_and_takes_its_sizes() -> None:
    locked = read_recipe("reference_mdlm")
    plain, sized = trial_of(locked, {}), trial_of(locked, {"steps": 7, "batch": 2})
    assert locked.trial is None
    assert plain.trial is not None
    assert plain.steps == plain.trial.sizes["steps"]
    assert (sized.steps, sized.global_batch) == (7, 2)
    assert sized.warmup_steps == plain.warmup_steps


def test_an_unknown_size_is_refused_with_the_known_ones() -> None:
    with pytest.raises(DlbhpcError, match=r"'stepps' .* steps, batch"):
        trial_of(read_recipe("reference_mdlm"), {"stepps": 3})


@pytest.mark.parametrize("size", [0, -1, True])
def test_a_size_of_zero_is_refused(size: int) -> None:
    with pytest.raises(DlbhpcError, match="whole number of at least 1"):
        trial_of(read_recipe("reference_mdlm"), {"steps": size})


def test_a_recipe_without_sizes_has_no_trial_yet() -> None:
    with pytest.raises(DlbhpcError, match="trials of duo are not available yet"):
        trial_of(read_recipe("duo"), {})
