"""The identity of a run: a digest over everything that decides its result, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dlbhpc.errors import DlbhpcError
from dlbhpc.files import digest

# Recorded, but without effect on the result: how many workers load the data, whether this attempt
# found a step to go on from, and where progress is shown.
_OUTSIDE = ("loader.num_workers", "checkpointing.resume_from_ckpt", "wandb")


def identity_command(argv: Sequence[str]) -> list[str]:
    """The command without what does not change the result."""
    return [word for word in argv if word.lstrip("+").partition("=")[0] not in _OUTSIDE]


def config_digest(composed: str) -> str:
    """Digest of a composed configuration (YAML text) without what does not change the result."""
    import yaml

    try:
        config = yaml.safe_load(composed)
    except yaml.YAMLError as error:
        raise DlbhpcError(f"a composed configuration is not valid YAML: {error}") from error
    if isinstance(config, dict):
        for key in _OUTSIDE:
            _drop(config, key.split("."))
    return digest(config)


def identity_digest(fields: Mapping[str, Any]) -> str:
    """The run's identity as one digest."""
    return digest(dict(fields))


def _drop(config: dict[str, Any], path: list[str]) -> None:
    *parents, last = path
    for parent in parents:
        inner = config.get(parent)
        if not isinstance(inner, dict):
            return
        config = inner
    config.pop(last, None)
