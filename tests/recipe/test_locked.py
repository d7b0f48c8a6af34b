"""Flags that name a locked number."""

from __future__ import annotations

import pytest

from dlbhpc.recipe import LOCKED_FLAGS, LockedValue, check_locked, read_recipe

VALUES = {
    "global_batch": 128,
    "learning_rate": 6e-5,
    "rounds": 8,
    "steps_per_round": 10_000,
    "teacher_family": "masked_mdlm",
}


@pytest.mark.parametrize("key", LOCKED_FLAGS)
def test_the_locked_value_is_accepted(key: str) -> None:
    check_locked(read_recipe("mdlm_sdtt"), key, VALUES[key])


def test_numbers_compare_by_value() -> None:
    check_locked(read_recipe("flm"), "learning_rate", float("3e-4"))
    check_locked(read_recipe("flm"), "global_batch", 512.0)


@pytest.mark.parametrize("key", LOCKED_FLAGS)
@pytest.mark.parametrize("given", [1, "other", True, 1e9])
def test_another_value_is_refused_with_key_locked_and_given(key: str, given: object) -> None:
    with pytest.raises(LockedValue) as error:
        check_locked(read_recipe("mdlm_sdtt"), key, given)
    for part in (key, str(VALUES[key]), str(given), LOCKED_FLAGS[key]):
        assert part in str(error.value)


@pytest.mark.parametrize("key", ["rounds", "steps_per_round", "teacher_family"])
def test_a_value_that_the_recipe_does_not_have_is_refused(key: str) -> None:
    with pytest.raises(LockedValue, match=f"{key} of flm on lm1b has no value to set"):
        check_locked(read_recipe("flm"), key, VALUES[key])
