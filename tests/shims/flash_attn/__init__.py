"""The part of flash-attn that the upstreams call, on torch's own attention."""

import flash_attn.flash_attn_interface
from flash_attn.flash_attn_interface import flash_attn_func, flash_attn_qkvpacked_func

__all__ = ["flash_attn", "flash_attn_func", "flash_attn_qkvpacked_func"]
