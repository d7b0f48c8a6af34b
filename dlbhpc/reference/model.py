"""A diffusion transformer: bidirectional attention, rotary positions, adaptive layer norm.

The architecture of Peebles & Xie 2023 (arXiv:2212.09748) as Sahoo et al. 2024 (arXiv:2406.07524)
use it for text. Parameters carry the names of the published checkpoints' backbone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

FREQUENCIES = 256
"""Width of the sinusoidal embedding of the noise level."""


@dataclass(frozen=True)
class ModelConfig:
    """Sizes of a :class:`DiT`; ``hidden_size`` must be a multiple of twice ``n_heads``.

    Without ``time_conditioning`` the model does not see the noise level: with masks the tokens
    themselves show it.
    """

    vocab_size: int
    hidden_size: int
    cond_dim: int
    n_blocks: int
    n_heads: int
    time_conditioning: bool


class DiT(nn.Module):
    """Scores every vocabulary entry at every position of a partly masked sequence."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.time_conditioning = config.time_conditioning
        self.vocab_embed = VocabEmbedding(config.vocab_size, config.hidden_size)
        self.sigma_map = NoiseEmbedding(config.cond_dim)
        self.rotary_emb = Rotary(config.hidden_size // config.n_heads)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.n_blocks))
        self.output_layer = OutputLayer(config)

    def forward(self, tokens: Tensor, sigma: Tensor) -> Tensor:
        """Logits (batch, length, vocabulary) for ``tokens`` (batch, length), ``sigma`` (batch)."""
        if not self.time_conditioning:
            sigma = torch.zeros_like(sigma)
        hidden = self.vocab_embed(tokens)
        condition = functional.silu(self.sigma_map(sigma))
        rotation = self.rotary_emb(tokens.shape[1])
        for block in self.blocks:
            hidden = block(hidden, condition, rotation)
        logits: Tensor = self.output_layer(hidden, condition)
        return logits


class VocabEmbedding(nn.Module):
    """One learned vector a token."""

    def __init__(self, vocab_size: int, hidden_size: int) -> None:
        super().__init__()
        self.embedding = nn.Parameter(torch.empty(vocab_size, hidden_size))
        nn.init.kaiming_uniform_(self.embedding, a=math.sqrt(5))

    def forward(self, tokens: Tensor) -> Tensor:
        return functional.embedding(tokens, self.embedding)


class NoiseEmbedding(nn.Module):
    """Embeds the noise level ``sigma`` (batch) into a vector."""

    def __init__(self, cond_dim: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(
            nn.Linear(FREQUENCIES, cond_dim), nn.SiLU(), nn.Linear(cond_dim, cond_dim)
        )

    def forward(self, sigma: Tensor) -> Tensor:
        half = FREQUENCIES // 2
        exponents = torch.arange(half, dtype=torch.float32, device=sigma.device) / half
        angles = sigma.float()[:, None] * torch.exp(-math.log(10_000) * exponents)
        embedded: Tensor = self.mlp(torch.cat([angles.cos(), angles.sin()], dim=-1))
        return embedded


class Rotary(nn.Module):
    """Rotary position embedding (Su et al. 2021, arXiv:2104.09864)."""

    inv_freq: Tensor

    def __init__(self, head_size: int, base: float = 10_000.0) -> None:
        super().__init__()
        exponents = torch.arange(0, head_size, 2, dtype=torch.float32) / head_size
        self.register_buffer("inv_freq", base**-exponents)

    def forward(self, length: int) -> tuple[Tensor, Tensor]:
        """Cosine and sine (length, head size) of every position's angles."""
        positions = torch.arange(length, dtype=torch.float32, device=self.inv_freq.device)
        angles = torch.outer(positions, self.inv_freq).repeat(1, 2)
        return angles.cos(), angles.sin()


def rotate(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Turn queries or keys ``x`` (batch, heads, length, head size) by their positions."""
    cos, sin = rotation
    first, second = x.chunk(2, dim=-1)
    return (x * cos + torch.cat([-second, first], dim=-1) * sin).to(x.dtype)


class LayerNorm(nn.Module):
    """Layer norm with a scale and no shift, computed in 32 bits."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        normed = functional.layer_norm(x.float(), self.weight.shape)
        return (normed * self.weight).to(x.dtype)


def modulate(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    """Adaptive layer norm's affine map, one per sample."""
    return x * (1 + scale) + shift


def zero_linear(inputs: int, outputs: int) -> nn.Linear:
    """A linear layer that starts as the zero map."""
    layer = nn.Linear(inputs, outputs)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


class Block(nn.Module):
    """Attention and a feed-forward part, each modulated and gated by the noise level."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        size = config.hidden_size
        self.n_heads = config.n_heads
        self.norm1 = LayerNorm(size)
        self.attn_qkv = nn.Linear(size, 3 * size, bias=False)
        self.attn_out = nn.Linear(size, size, bias=False)
        self.norm2 = LayerNorm(size)
        self.mlp = nn.Sequential(
            nn.Linear(size, 4 * size), nn.GELU(approximate="tanh"), nn.Linear(4 * size, size)
        )
        self.adaLN_modulation = zero_linear(config.cond_dim, 6 * size)

    def forward(self, x: Tensor, condition: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        parts = self.adaLN_modulation(condition)[:, None].chunk(6, dim=-1)
        shift1, scale1, gate1, shift2, scale2, gate2 = parts
        x = x + gate1 * self._attend(modulate(self.norm1(x), shift1, scale1), rotation)
        x = x + gate2 * self.mlp(modulate(self.norm2(x), shift2, scale2))
        return x

    def _attend(self, x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        batch, length, size = x.shape
        qkv = self.attn_qkv(x).view(batch, length, 3, self.n_heads, -1).permute(2, 0, 3, 1, 4)
        query, key, value = qkv.unbind()
        attended = functional.scaled_dot_product_attention(
            rotate(query, rotation), rotate(key, rotation), value
        )
        out: Tensor = self.attn_out(attended.transpose(1, 2).reshape(batch, length, size))
        return out


class OutputLayer(nn.Module):
    """Maps hidden states to logits; zero at the start, so that every token is equally likely."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.norm_final = LayerNorm(config.hidden_size)
        self.linear = zero_linear(config.hidden_size, config.vocab_size)
        self.adaLN_modulation = zero_linear(config.cond_dim, 2 * config.hidden_size)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        shift, scale = self.adaLN_modulation(condition)[:, None].chunk(2, dim=-1)
        logits: Tensor = self.linear(modulate(self.norm_final(x), shift, scale))
        return logits
