"""Exact attention over packed queries, keys and values."""

from torch.nn.functional import scaled_dot_product_attention


def flash_attn_func(q, k, v, dropout_p=0.0, causal=False, **_):
    """Shapes (batch, length, heads, size)."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return scaled_dot_product_attention(q, k, v, None, dropout_p, causal).transpose(1, 2)


def flash_attn_qkvpacked_func(qkv, dropout_p=0.0, causal=False, **_):
    """Shape (batch, length, 3, heads, size)."""
    return flash_attn_func(*qkv.unbind(2), dropout_p, causal)


def flash_attn_varlen_qkvpacked_func(qkv, cu_seqlens, max_seqlen, dropout_p=0.0, causal=False, **_):
    """Sequences of one length, one after the other: shape (total length, 3, heads, size)."""
    assert len(qkv) == max_seqlen * (len(cu_seqlens) - 1), "the sequences differ in length"
    sequences = qkv.unflatten(0, (-1, max_seqlen))
    return flash_attn_qkvpacked_func(sequences, dropout_p, causal).flatten(0, 1)


def _flash_attn_backward(*_, **__):
    raise NotImplementedError("only a GPU's kernel needs it")


_flash_attn_varlen_backward = _flash_attn_backward
