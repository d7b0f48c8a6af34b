"""Masked diffusion as Sahoo et al. 2024 (MDLM, arXiv:2406.07524) formulate it.

The forward process masks each token independently with a probability that grows with time t in
(0, 1]; the model predicts the original tokens from what is left. All functions are pure.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

Denoiser = Callable[[Tensor, Tensor], Tensor]
"""Logits (batch, length, vocabulary) from tokens (batch, length) and noise level (batch)."""

NOISE_EPS = 1e-3
"""Keeps the noise level finite at t = 1."""


@dataclass(frozen=True)
class Corruption:
    """Which tokens of a batch are masked, and what that makes a masked token's loss weigh.

    ``masked`` (batch, length) is boolean; ``weights`` and ``sigma``, the noise level, are (batch).
    """

    masked: Tensor
    weights: Tensor
    sigma: Tensor

    def rows(self, start: int, stop: int) -> Corruption:
        """The part that belongs to samples ``start`` to ``stop`` of the batch."""
        part = slice(start, stop)
        return Corruption(self.masked[part], self.weights[part], self.sigma[part])

    def to(self, device: torch.device) -> Corruption:
        """The same on ``device``."""
        return Corruption(*(x.to(device) for x in (self.masked, self.weights, self.sigma)))


def mask_probability(times: Tensor) -> Tensor:
    """Log-linear schedule: the probability 1 - exp(-sigma) that a token is masked at time t."""
    return (1 - NOISE_EPS) * times


def noise_level(times: Tensor) -> Tensor:
    """The log-linear schedule's sigma at time t."""
    return -torch.log1p(-mask_probability(times))


def stratified(samples: int, generator: torch.Generator | None = None) -> Tensor:
    """Numbers (samples) in [0, 1), one in each of as many equal parts (antithetic sampling)."""
    offsets = torch.arange(samples) / samples
    return (torch.rand(samples, generator=generator) / samples + offsets) % 1


def random_corruption(samples: int, length: int, sampling_eps: float) -> Corruption:
    """What training uses: random times, each token masked independently of the others.

    Stratified times lower the variance of the loss; none is below ``sampling_eps``, since with
    log-linear noise the weight is 1 / t. The numbers come from torch's CPU generator whatever
    device trains.
    """
    times = (1 - sampling_eps) * stratified(samples) + sampling_eps
    masked = torch.rand(samples, length) < mask_probability(times)[:, None]
    return Corruption(masked, 1 / times, noise_level(times))


def counted_corruption(samples: int, length: int, generator: torch.Generator) -> Corruption:
    """What evaluation uses: random *numbers* of masked tokens, from 1 to ``length``.

    In expectation the same bound as with random times (Ou et al. 2024, arXiv:2406.03736, section
    3.3), with a third of the standard error.
    """
    counts = (stratified(samples, generator) * length).long().clamp(max=length - 1) + 1
    ranks = torch.rand(samples, length, generator=generator).argsort(dim=-1).argsort(dim=-1)
    fractions = counts / length
    return Corruption(ranks < counts[:, None], 1 / fractions, noise_level(fractions))


def subs_log_probs(logits: Tensor, tokens: Tensor, mask_token: int) -> Tensor:
    """Log-probabilities of the original tokens (SUBS parameterization, section 3.2.3).

    The mask is never predicted, and what is not masked is carried over unchanged.
    """
    is_mask_token = torch.arange(logits.shape[-1], device=logits.device) == mask_token
    log_probs = logits.float().masked_fill(is_mask_token, -torch.inf).log_softmax(dim=-1)
    certain = torch.full_like(log_probs, -torch.inf).scatter(-1, tokens[..., None], 0.0)
    return torch.where((tokens == mask_token)[..., None], log_probs, certain)


def token_losses(
    denoiser: Denoiser, tokens: Tensor, corruption: Corruption, mask_token: int
) -> Tensor:
    """The bound on -log p of every token in nats, (batch, length): equation 10 of the paper."""
    corrupted = torch.where(corruption.masked, mask_token, tokens)
    log_probs = subs_log_probs(denoiser(corrupted, corruption.sigma), corrupted, mask_token)
    chosen = log_probs.gather(-1, tokens[..., None]).squeeze(-1)
    return -chosen * corruption.weights[:, None]


@torch.no_grad()
def ancestral_sample(
    denoiser: Denoiser,
    samples: int,
    length: int,
    steps: int,
    mask_token: int,
    generator: torch.Generator,
    device: torch.device,
) -> Tensor:
    """Sample sequences (samples, length) by undoing the masking in ``steps`` equal steps."""
    tokens = torch.full((samples, length), mask_token, device=device)
    for time, next_time in pairwise(torch.linspace(1, 0, steps + 1)):
        sigma = noise_level(time).expand(samples).to(device)
        log_probs = subs_log_probs(denoiser(tokens, sigma), tokens, mask_token)
        noise = torch.rand(log_probs.shape, generator=generator).to(device)
        proposal = (log_probs - torch.log(-torch.log(noise))).argmax(dim=-1)
        revealed = torch.rand(tokens.shape, generator=generator) < 1 - next_time / time
        tokens = torch.where((tokens == mask_token) & revealed.to(device), proposal, tokens)
    return tokens
