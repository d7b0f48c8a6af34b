"""Exact attention over packed queries, keys and values."""

import torch
from torch.nn.functional import scaled_dot_product_attention


def flash_attn_func(q, k, v, dropout_p=0.0, causal=False, **_):
    """Shapes (batch, length, heads, size)."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return scaled_dot_product_attention(q, k, v, None, dropout_p, causal).transpose(1, 2)


def flash_attn_qkvpacked_func(qkv, dropout_p=0.0, causal=False, **_):
    """Shape (batch, length, 3, heads, size)."""
    return flash_attn_func(*qkv.unbind(2), dropout_p, causal)


def flash_attn_varlen_qkvpacked_func(qkv, cu_seqlens, max_seqlen, dropout_p=0.0, causal=False, **_):
    """Sequences one after the other: shape (total length, 3, heads, size)."""
    ends = cu_seqlens.tolist()
    sequences = [qkv[start:end].unsqueeze(0) for start, end in zip(ends, ends[1:])]
    parts = [flash_attn_qkvpacked_func(one, dropout_p, causal).squeeze(0) for one in sequences]
    return torch.cat(parts)


def _flash_attn_backward(*_, **__):
    raise NotImplementedError("only a GPU's kernel needs it")


_flash_attn_varlen_backward = _flash_attn_backward
