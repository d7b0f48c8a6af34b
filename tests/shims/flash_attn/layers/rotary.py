"""Rotary position embedding, not interleaved."""

import torch


def apply_rotary_emb_torch(x, cos, sin, interleaved=False):
    """``x``: (batch, length, heads, size); ``cos``, ``sin``: (length, size / 2)."""
    assert not interleaved
    cos, sin = (torch.cat([y, y], dim=-1)[:, None, :] for y in (cos, sin))
    one, other = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-other, one], dim=-1) * sin


def apply_rotary_emb_qkv_(qkv, cos, sin, **_):
    """Queries and keys of (batch, length, 3, heads, size) turned, values as they are."""
    q, k, v = qkv.unbind(2)
    turned = (apply_rotary_emb_torch(x, cos, sin) for x in (q, k))
    return torch.stack([*turned, v], dim=2)
