"""Which kind of model a checkpoint is of, by the configuration that its training left in it.

The weights cannot tell: all of them are the same network.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dlbhpc.inputs.teacher.loading import Inert
from dlbhpc.inputs.teacher.names import TeacherError

# Key of the upstream's configuration, its value, the family that it means.
_FAMILIES = (
    ("algo.name", "flm", "continuous_flm"),
    ("algo.name", "duo", "uniform_duo"),
    ("algo.name", "duo_base", "uniform_duo"),
    ("algo.name", "mdlm", "masked_mdlm"),
    ("diffusion", "absorbing_state", "masked_mdlm"),
)


@dataclass(frozen=True)
class Family:
    """The family of a checkpoint (None where its kind is not one of ours), and what told it."""

    name: str | None
    evidence: str


def family_of(content: Mapping[str, Any]) -> Family | None:
    """The family of a checkpoint; None when it holds no configuration that could tell."""
    parameters = content.get("hyper_parameters")
    config = _child(parameters, "config")
    told = {key: _value(config, key) for key in ("algo.name", "diffusion", "parameterization")}
    shown = ", ".join(f"{key}={value}" for key, value in told.items() if isinstance(value, str))
    if not shown:
        return None
    for key, value, family in _FAMILIES:
        # mdlm's own code also trains other parameterizations of the same diffusion.
        if told[key] == value and (key != "diffusion" or told["parameterization"] == "subs"):
            return Family(family, shown)
    return Family(None, shown)


def check_family(content: Mapping[str, Any], family: str, path: Path) -> str:
    """Refuse a checkpoint of another family; returns what told its family.

    One without a configuration is taken at its word. Raises TeacherError.
    """
    found = family_of(content)
    if found is None:
        return "not recorded in the checkpoint"
    if found.name != family:
        kind = f"of the family {found.name}" if found.name else "of no family that teaches"
        raise TeacherError(
            f"the teacher {path} is {kind} (its configuration says {found.evidence}), "
            f"the student needs {family}"
        )
    return found.evidence


def _value(config: Any, key: str) -> Any:
    for part in key.split("."):
        config = _child(config, part)
    return config


def _child(node: Any, key: str) -> Any:
    """An entry of a mapping, be it a configuration object that was never built."""
    if isinstance(node, Inert):
        node = node.state.get("_content") if isinstance(node.state, dict) else None
    get = getattr(node, "get", None)
    value = get(key) if get is not None else None
    if isinstance(value, Inert) and isinstance(value.state, dict) and "_val" in value.state:
        return value.state["_val"]
    return value
