"""Masked diffusion: what is masked, what is predicted, what it costs."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dlbhpc.reference.diffusion import (
    ancestral_sample,
    counted_corruption,
    mask_probability,
    noise_level,
    random_corruption,
    stratified,
    subs_log_probs,
    token_losses,
)

VOCAB, MASK, LENGTH = 11, 2, 8


def random_tokens(samples: int) -> Tensor:
    """Sequences without the mask token."""
    return torch.randint(3, VOCAB, (samples, LENGTH), generator=torch.Generator().manual_seed(0))


def uniform(tokens: Tensor, sigma: Tensor) -> Tensor:
    """A denoiser that knows nothing."""
    return torch.zeros(*tokens.shape, VOCAB)


@given(st.integers(0, 2**31))
@settings(max_examples=20, deadline=None)
def test_subs_never_predicts_the_mask_and_carries_over_what_is_not_masked(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = 5 * torch.randn(3, LENGTH, VOCAB, generator=generator)
    tokens = random_tokens(3)
    tokens[torch.rand(3, LENGTH, generator=generator) < 0.5] = MASK
    probabilities = subs_log_probs(logits, tokens, MASK).exp()
    masked = tokens == MASK
    torch.testing.assert_close(probabilities.sum(-1), torch.ones(3, LENGTH))
    assert (probabilities[masked][:, MASK] == 0).all()
    assert (probabilities[masked][:, 3] > 0).all()
    carried = torch.nn.functional.one_hot(tokens[~masked], VOCAB).float()
    assert torch.equal(probabilities[~masked], carried)


def test_gradient_is_finite_and_only_masked_positions_have_one() -> None:
    tokens = random_tokens(4)
    logits = torch.zeros(4, LENGTH, VOCAB, requires_grad=True)
    corruption = random_corruption(4, LENGTH, 1e-3)
    token_losses(lambda *_: logits, tokens, corruption, MASK).sum().backward()
    assert logits.grad is not None and logits.grad.isfinite().all()
    assert torch.equal(logits.grad.abs().sum(-1) > 0, corruption.masked)


@pytest.mark.parametrize("kind", ["random", "counted"])
def test_perfect_predictor_costs_nothing(kind: str) -> None:
    tokens = random_tokens(5)
    if kind == "random":
        corruption = random_corruption(5, LENGTH, 1e-3)
    else:
        corruption = counted_corruption(5, LENGTH, torch.Generator().manual_seed(1))
    perfect = 1e4 * torch.nn.functional.one_hot(tokens, VOCAB).float()
    assert (token_losses(lambda *_: perfect, tokens, corruption, MASK) == 0).all()


def test_uniform_predictor_costs_the_logarithm_of_the_vocabulary_without_the_mask() -> None:
    tokens = random_tokens(20_000)
    torch.manual_seed(0)
    losses = token_losses(uniform, tokens, random_corruption(20_000, LENGTH, 1e-3), MASK)
    assert losses.mean().item() == pytest.approx(math.log(VOCAB - 1), rel=0.05)
    # With counted masks every sequence costs exactly that, whatever is masked.
    counted = counted_corruption(50, LENGTH, torch.Generator().manual_seed(1))
    losses = token_losses(uniform, tokens[:50], counted, MASK)
    torch.testing.assert_close(losses.mean(-1), torch.full((50,), math.log(VOCAB - 1)))


def test_unmasked_tokens_cost_nothing_and_masked_ones_weigh_one_over_t() -> None:
    tokens = random_tokens(6)
    corruption = random_corruption(6, LENGTH, 1e-3)
    losses = token_losses(uniform, tokens, corruption, MASK)
    times = (1 - torch.exp(-corruption.sigma)) / (1 - 1e-3)
    expected = corruption.masked * (math.log(VOCAB - 1) / times)[:, None]
    torch.testing.assert_close(losses, expected, rtol=1e-3, atol=1e-4)


@given(st.integers(1, 200), st.integers(0, 2**31))
@settings(deadline=None)
def test_times_are_stratified(samples: int, seed: int) -> None:
    fractions = stratified(samples, torch.Generator().manual_seed(seed))
    strata = (fractions.double() * samples + 1e-4).floor().long().clamp(max=samples - 1)
    # Up to a rounding at a stratum's edge there is one in each.
    assert (fractions >= 0).all() and (fractions < 1).all()
    assert (strata.sort().values - torch.arange(samples)).abs().max() <= 1


def test_schedule_masks_everything_at_the_end_and_nothing_at_the_start() -> None:
    times = torch.linspace(0, 1, 101)
    assert mask_probability(times)[0] == 0
    assert mask_probability(times)[-1] == pytest.approx(0.999)
    torch.testing.assert_close(1 - torch.exp(-noise_level(times)), mask_probability(times))
    assert noise_level(times).isfinite().all()


def test_counted_corruption_masks_whole_numbers_of_tokens_that_cover_the_range() -> None:
    corruption = counted_corruption(LENGTH, LENGTH, torch.Generator().manual_seed(4))
    counts = corruption.masked.sum(-1)
    assert sorted(counts.tolist()) == list(range(1, LENGTH + 1))
    torch.testing.assert_close(corruption.weights, LENGTH / counts)


def test_sampling_reveals_every_token_and_follows_the_predictor() -> None:
    target = random_tokens(2)
    sure = 1e4 * torch.nn.functional.one_hot(target, VOCAB).float()
    seen: list[Tensor] = []

    def denoiser(tokens: Tensor, sigma: Tensor) -> Tensor:
        seen.append(tokens)
        return sure

    sampled = ancestral_sample(
        denoiser, 2, LENGTH, 6, MASK, torch.Generator().manual_seed(0), torch.device("cpu")
    )
    assert torch.equal(sampled, target)
    assert (seen[0] == MASK).all()
    left = [int((tokens == MASK).sum()) for tokens in seen]
    assert left == sorted(left, reverse=True) and len(left) == 6
    for before, after in zip(seen, [*seen[1:], sampled], strict=True):
        revealed = before != MASK
        assert torch.equal(before[revealed], after[revealed])


def test_sampling_never_yields_the_mask_and_is_repeatable() -> None:
    def sample() -> Tensor:
        generator = torch.Generator().manual_seed(5)
        return ancestral_sample(uniform, 50, LENGTH, 3, MASK, generator, torch.device("cpu"))

    assert (sample() != MASK).all()
    assert torch.equal(sample(), sample())
    assert set(sample().flatten().tolist()) == set(range(VOCAB)) - {MASK}
