"""Trials: toy sizes, marked and never the locked run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dlbhpc.errors import DlbhpcError
from dlbhpc.recipe import list_recipes, parse_sizes, read_recipe, trial_of


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


def test_a_recipe_without_sizes_has_no_trial() -> None:
    with pytest.raises(DlbhpcError, match="duo has no trial"):
        trial_of(replace(read_recipe("duo"), trial_defaults=None), {})


def test_every_pinned_recipe_has_a_trial_on_a_small_dataset_of_its_own() -> None:
    for recipe in list_recipes():
        for dataset in recipe.datasets:
            locked = read_recipe(recipe.name, dataset)
            trial = trial_of(locked, {})
            if locked.upstream.commit is None:
                assert trial.dataset == locked.dataset
                continue
            assert trial.dataset.name == dataset
            assert trial.dataset.sequence_length < locked.dataset.sequence_length
            assert trial.dataset.processed != locked.dataset.processed
            # An upstream builds the name of its cache from the length of its model.
            assert all(
                alias.replace(f"bs{trial.dataset.sequence_length}_", "bs_")
                == real.replace(f"bs{locked.dataset.sequence_length}_", "bs_")
                for alias, real in zip(trial.dataset.aliases, locked.dataset.aliases, strict=True)
            )
            assert trial.dataset.base_vocab < locked.dataset.base_vocab


def test_a_trial_takes_one_gpu_and_without_any_trains_in_32_bits() -> None:
    locked = read_recipe("mdlm")
    assert (trial_of(locked, {}).precision, trial_of(locked, {}).gpus_per_node) == ("bf16", 1)
    assert trial_of(locked, {}, "cpu").precision == "32-true"


def test_rounds_of_a_trial_are_short() -> None:
    trial = trial_of(read_recipe("mdlm_sdtt"), {"steps": 12, "round": 3})
    assert (trial.rounds, trial.steps_per_round, trial.selected_step) == (4, 3, 9)
    assert trial_of(read_recipe("duo_dcd"), {}).selected_step is None


@pytest.mark.parametrize(("steps", "per_round"), [(10, 3), (3, 3)])
def test_rounds_that_do_not_fit_are_refused(steps: int, per_round: int) -> None:
    with pytest.raises(DlbhpcError, match="--trial: "):
        trial_of(read_recipe("mdlm_sdtt"), {"steps": steps, "round": per_round})


def test_a_small_student_cannot_start_from_published_weights() -> None:
    locked = read_recipe("mdlm_di4c", "owt").student_init
    small = trial_of(read_recipe("mdlm_di4c", "owt"), {}).student_init
    assert locked is not None and small is not None
    assert (locked.default, small.default) == ("hf_small", "teacher")
    assert "hf_small" not in small.allowed


def test_a_trial_may_stand_in_for_a_departure() -> None:
    key = "eval.gen_ppl_eval_model_name_or_path"
    locked = read_recipe("mdlm")
    trial = trial_of(locked, {})
    assert key in {departure.key for departure in locked.departures}
    assert key not in {departure.key for departure in trial.departures}
    assert trial.overrides[key] == "{tokenizer}"
