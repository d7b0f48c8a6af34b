"""From a teacher's vocabulary to the student's."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlbhpc.inputs.teacher.names import INV_FREQ, VOCABULARY, TeacherError
from dlbhpc.inputs.teacher.transform import (
    MASKED,
    UNIFORM,
    Adapted,
    Vocabulary,
    adapt_state,
    inv_freq,
)
from tests.inputs.teacher.conftest import BACKBONE, BASE, make_state, torch

MASK = 7
BERT, GPT2 = Vocabulary(BASE, MASK), Vocabulary(BASE, None)


def adapt(state: dict[str, Any], how: str, vocabulary: Vocabulary = BERT) -> Adapted:
    """Adapts, and watches that the source stays what it was."""
    before = {name: tensor.clone() for name, tensor in state.items()}
    adapted = adapt_state(state, how, vocabulary, BACKBONE, "the teacher")
    assert all(torch.equal(before[name], state[name]) for name in before)
    others = set(state) - set(VOCABULARY)
    assert all(torch.equal(adapted.state[name], state[name]) for name in others)
    assert set(adapted.state) == {*state, INV_FREQ}
    assert {len(adapted.state[name]) for name in VOCABULARY} == {vocabulary.target}
    return adapted


@settings(deadline=None)
@given(st.integers(0, 1000))
def test_uniform_base_rows_get_a_row_of_zeros(seed: int) -> None:
    state = make_state(BASE, seed=seed)
    adapted = adapt(state, UNIFORM)
    for name in VOCABULARY:
        assert torch.equal(adapted.state[name][:-1], state[name])
        assert not adapted.state[name][-1].any()
    assert adapted.source_mask is None


@settings(deadline=None)
@given(st.integers(0, 1000))
def test_a_uniform_source_with_one_more_row_has_it_zeroed(seed: int) -> None:
    state = make_state(BASE + 1, seed=seed)
    adapted = adapt(state, UNIFORM, GPT2)
    for name in VOCABULARY:
        assert torch.equal(adapted.state[name][:-1], state[name][:-1])
        assert not adapted.state[name][-1].any()


@settings(deadline=None)
@given(st.integers(0, BASE - 1), st.integers(0, 1000))
def test_a_masked_source_has_its_mask_row_moved_behind_the_last(row: int, seed: int) -> None:
    state = make_state(BASE, seed=seed)
    adapted = adapt(state, MASKED, Vocabulary(BASE, row))
    for name in VOCABULARY:
        assert torch.equal(adapted.state[name][-1], state[name][row])
        assert not adapted.state[name][row].any()
        kept = [i for i in range(BASE) if i != row]
        assert torch.equal(adapted.state[name][kept], state[name][kept])
    assert adapted.source_mask == row


@pytest.mark.parametrize("vocabulary", [BERT, GPT2])
def test_a_masked_source_of_the_target_size_passes_unchanged(vocabulary: Vocabulary) -> None:
    state = make_state(BASE + 1)
    adapted = adapt(state, MASKED, vocabulary)
    assert all(torch.equal(adapted.state[name], state[name]) for name in VOCABULARY)
    assert adapted.source_mask == BASE


def test_a_masked_source_without_a_mask_row_is_refused() -> None:
    with pytest.raises(TeacherError, match=f"no row for the mask: {BASE} tokens"):
        adapt(make_state(BASE), MASKED, GPT2)


@pytest.mark.parametrize("how", [UNIFORM, MASKED])
@pytest.mark.parametrize("vocab", [BASE - 1, BASE + 2])
def test_another_vocabulary_is_refused_by_its_size(how: str, vocab: int) -> None:
    with pytest.raises(TeacherError, match=rf"vocabulary of {vocab} tokens, the dataset's is 20"):
        adapt(make_state(vocab), how)


def test_a_tensor_that_repeats_a_little_memory_is_refused() -> None:
    state = make_state(BASE)
    name = "sigma_map.mlp.0.weight"
    state[name] = torch.ones(1).expand(state[name].shape)
    with pytest.raises(TeacherError, match=f"{name} is larger than what the file holds"):
        adapt(state, MASKED)


@pytest.mark.parametrize("how", [UNIFORM, MASKED])
@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("name", VOCABULARY)
def test_a_mask_row_that_is_not_finite_is_refused_by_name(
    how: str, value: float, name: str
) -> None:
    state = make_state(BASE)
    state[name][MASK] = value
    with pytest.raises(TeacherError, match=rf"{name} holds values that are not finite"):
        adapt(state, how)


def test_nan_anywhere_is_refused_by_name() -> None:
    state = make_state(BASE)
    state["blocks.1.mlp.2.bias"][3] = math.nan
    with pytest.raises(TeacherError, match=r"blocks.1.mlp.2.bias holds values"):
        adapt(state, UNIFORM)


@pytest.mark.parametrize(("vocab", "row"), [(BASE, MASK), (BASE + 1, BASE)])
def test_a_masked_teacher_whose_mask_was_never_trained_is_refused(vocab: int, row: int) -> None:
    state = make_state(vocab)
    state["vocab_embed.embedding"][row] = 0
    with pytest.raises(TeacherError, match=rf"row of the mask \({row}\) .* is all zero"):
        adapt(state, MASKED)


def test_output_rows_of_the_mask_may_be_zero() -> None:
    state = make_state(BASE)
    state["output_layer.linear.weight"][MASK] = 0
    state["output_layer.linear.bias"][MASK] = 0
    adapt(state, MASKED)


def test_the_rotary_frequencies_are_made_or_kept() -> None:
    made = adapt(make_state(BASE), UNIFORM).state[INV_FREQ]
    assert torch.allclose(made, torch.tensor([1.0, 0.01]))
    kept = torch.tensor([3.0, 4.0])
    adapted = adapt_state({**make_state(BASE), INV_FREQ: kept}, UNIFORM, BERT, BACKBONE, "it")
    assert torch.equal(adapted.state[INV_FREQ], kept)
    assert inv_freq(64).shape == (32,)


def test_kinds_of_numbers_are_kept() -> None:
    state = {name: tensor.bfloat16() for name, tensor in make_state(BASE).items()}
    adapted = adapt(state, MASKED)
    kinds = {tensor.dtype for name, tensor in adapted.state.items() if name != INV_FREQ}
    assert kinds == {torch.bfloat16}


def test_a_view_is_saved_without_what_it_views() -> None:
    whole = torch.randn(100 * BASE)
    state = {**make_state(BASE), "blocks.0.norm1.weight": whole[BASE : BASE + 8]}
    adapted = adapt(state, UNIFORM).state["blocks.0.norm1.weight"]
    assert adapted.untyped_storage().nbytes() == adapted.nbytes
