"""Masked diffusion as Sahoo et al. 2024 (MDLM, arXiv:2406.07524) formulate it.

The forward process masks each token independently with a probability that grows with time t in
(0, 1]; the model predicts the original tokens from what is left. All functions are pure.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

Denoiser = Callable[[Tensor, Tensor], Tensor]
"""Logits (batch, length, vocabulary) from tokens (batch, length) and noise level (batch)."""

NOISE_EPS = 1e-3
"""Keeps the noise level finite at t = 1."""


@dataclass(frozen=True)
class Draw:
    """The random numbers of one global batch: times (batch), uniforms (batch, length)."""

    times: Tensor
    uniforms: Tensor

    def rows(self, start: int, stop: int) -> Draw:
        """The part that belongs to samples ``start`` to ``stop`` of the batch."""
        return Draw(self.times[start:stop], self.uniforms[start:stop])

    def to(self, device: torch.device) -> Draw:
        """The same numbers on ``device``."""
        return Draw(self.times.to(device), self.uniforms.to(device))


def draw(
    samples: int, length: int, sampling_eps: float, generator: torch.Generator | None = None
) -> Draw:
    """Draw times and uniforms for ``samples`` sequences, on the CPU whatever device trains.

    The times are stratified (MDLM's antithetic sampling): one falls into each of ``samples`` equal
    parts of [sampling_eps, 1], which lowers the variance of the loss.
    """
    offsets = torch.arange(samples) / samples
    fractions = (torch.rand(samples, generator=generator) / samples + offsets) % 1
    times = (1 - sampling_eps) * fractions + sampling_eps
    return Draw(times, torch.rand(samples, length, generator=generator))


def mask_probability(times: Tensor) -> Tensor:
    """Log-linear schedule: the probability 1 - exp(-sigma) that a token is masked at time t."""
    return (1 - NOISE_EPS) * times


def noise_level(times: Tensor) -> Tensor:
    """The schedule's sigma at time t."""
    return -torch.log1p(-mask_probability(times))


def corrupt(tokens: Tensor, drawn: Draw, mask_token: int) -> Tensor:
    """``tokens`` (batch, length) with each position masked where its uniform says so."""
    masked = drawn.uniforms < mask_probability(drawn.times)[:, None]
    return torch.where(masked, mask_token, tokens)


def subs_log_probs(logits: Tensor, tokens: Tensor, mask_token: int) -> Tensor:
    """Log-probabilities of the original tokens (SUBS parameterization, section 3.2.3).

    The mask is never predicted, and what is not masked is carried over unchanged.
    """
    is_mask_token = torch.arange(logits.shape[-1], device=logits.device) == mask_token
    log_probs = logits.float().masked_fill(is_mask_token, -torch.inf).log_softmax(dim=-1)
    certain = torch.full_like(log_probs, -torch.inf).scatter(-1, tokens[..., None], 0.0)
    return torch.where((tokens == mask_token)[..., None], log_probs, certain)


def token_losses(denoiser: Denoiser, tokens: Tensor, drawn: Draw, mask_token: int) -> Tensor:
    """The bound on -log p of every token in nats, (batch, length): equation 10 of the paper.

    With log-linear noise the weight of a masked token's cross entropy is 1 / t.
    """
    corrupted = corrupt(tokens, drawn, mask_token)
    logits = denoiser(corrupted, noise_level(drawn.times))
    log_probs = subs_log_probs(logits, corrupted, mask_token)
    return -log_probs.gather(-1, tokens[..., None]).squeeze(-1) / drawn.times[:, None]


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
    times = torch.linspace(1, 0, steps + 1)
    for time, next_time in zip(times[:-1], times[1:], strict=True):
        sigma = noise_level(time).expand(samples).to(device)
        log_probs = subs_log_probs(denoiser(tokens, sigma), tokens, mask_token)
        noise = torch.rand(log_probs.shape, generator=generator).to(device)
        proposal = (log_probs - torch.log(-torch.log(noise))).argmax(dim=-1)
        revealed = torch.rand(tokens.shape, generator=generator) < 1 - next_time / time
        tokens = torch.where((tokens == mask_token) & revealed.to(device), proposal, tokens)
    return tokens
