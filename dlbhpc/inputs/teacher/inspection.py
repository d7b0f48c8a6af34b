"""What a checkpoint holds, for a person who wants to know whether it can teach."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dlbhpc.inputs.teacher.family import family_of
from dlbhpc.inputs.teacher.loading import load_checkpoint, state_of
from dlbhpc.inputs.teacher.names import (
    EMBEDDING,
    INV_FREQ,
    expected,
    keys_digest,
    normalised,
)


def inspect(path: Path, *, trusted: bool = False) -> dict[str, Any]:
    """Facts about a checkpoint; its tensors are looked at, not read.

    Raises TeacherError for a file that cannot be read.
    """
    content = load_checkpoint(path, trusted=trusted)
    source = state_of(content, path)
    state = {short: source[name] for short, name in normalised(source, str(path)).items()}
    family = family_of(content)
    blocks = len({name.split(".")[1] for name in state if name.startswith("blocks.")})
    vocab, hidden = (None, None)
    if EMBEDDING in state and state[EMBEDDING].ndim == 2:
        vocab, hidden = state[EMBEDDING].shape
    differing = sorted((set(state) ^ set(expected(blocks))) - {INV_FREQ})
    return {
        "file": str(path),
        "bytes": path.stat().st_size,
        "step": _number(content.get("global_step")),
        "epoch": _number(content.get("epoch")),
        "family": family.name if family else None,
        "family_evidence": family.evidence if family else None,
        "blocks": blocks,
        "vocab": vocab,
        "hidden_size": hidden,
        "tensors": len(state),
        "parameters": sum(tensor.numel() for tensor in state.values()),
        "dtypes": sorted({str(tensor.dtype) for tensor in state.values()}),
        "is_dit": not differing,
        "differing_names": differing[:20],
        "state_keys_sha256": keys_digest(state),
        "has_ema": "ema" in content,
    }


def _number(value: Any) -> Any:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
