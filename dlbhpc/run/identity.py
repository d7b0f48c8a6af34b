"""The identity of a run: a digest over everything that decides its result, and nothing else."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dlbhpc.command import Launch, student_init_snapshot
from dlbhpc.data.manifest import Manifest
from dlbhpc.errors import DlbhpcError
from dlbhpc.files import digest, file_digest
from dlbhpc.images.task import RunImage
from dlbhpc.inputs.teacher.adapt import version_digest
from dlbhpc.layout import ADAPTERS

# Recorded, but without effect on the result: how many workers load the data, whether this attempt
# found a step to go on from, and where progress is shown.
_OUTSIDE = ("loader.num_workers", "checkpointing.resume_from_ckpt", "wandb")

_PROSE = frozenset(
    "summary evidence disclosures unverified resume trial_defaults num_workers "
    "refused_datasets".split()
)
"""What a recipe says about itself, or that does not change the result: outside the identity."""

_ADAPTERS = "dlbhpc.inside.adapters"


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


def known_identity(
    launch: Launch, manifest: Manifest, teacher: str | None, image: RunImage | None
) -> dict[str, Any]:
    """The fields of the identity that need no composed configuration.

    ``teacher`` is the digest of the teacher's file, or what stands for it (dlbhpc.run.teacher).
    """
    geometry = launch.geometry
    weights = student_init_snapshot(launch)
    return {
        "recipe": digest(_facts(launch.recipe.to_json())),
        "command": identity_command(launch.argv),
        "working_directory": str(launch.source),
        "source_commit": launch.source_commit,
        "data": manifest.sha256,
        "teacher": teacher,
        "adapter_version": _adapter_version(launch),
        # The commit that a branch of published weights resolved to when they were fetched.
        "student_weights": weights.name if weights else None,
        "image": image.content_sha256 if image else None,
        "seed": launch.seed,
        "geometry": {
            "nodes": geometry.nodes,
            "gpus_per_node": geometry.gpus_per_node,
            "per_device_batch": geometry.per_device_batch,
            "accumulation": geometry.accumulation,
        },
        "trial": launch.trial is not None,
    }


def _facts(recipe: dict[str, Any]) -> dict[str, Any]:
    """A recipe without its words: a sentence that is mended makes no other run."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(item) for key, item in value.items() if key != "reason"}
        return [plain(item) for item in value] if isinstance(value, list) else value

    return {key: plain(value) for key, value in recipe.items() if key not in _PROSE}


def _adapter_version(launch: Launch) -> str | None:
    """The digest of our own code that takes part in the result beside the upstream's."""
    parts = {}
    if launch.adapted_teacher is not None:
        parts["teacher"] = version_digest()
    if launch.recipe.adapter is not None:
        code = adapter_files(launch.entrypoint)
        parts["entrypoint"] = digest({path.name: file_digest(path) for path in code})
    return digest(parts) if parts else None


def adapter_files(entrypoint: Path) -> set[Path]:
    """The adapter and what it imports of the adapters' folder."""
    found, left = set(), {entrypoint}
    while left:
        path = left.pop()
        found.add(path)
        for node in ast.walk(ast.parse(path.read_bytes(), str(path))):
            module = node.module if isinstance(node, ast.ImportFrom) else None
            if module is not None and module.startswith(f"{_ADAPTERS}."):
                left.add(ADAPTERS / f"{module.removeprefix(f'{_ADAPTERS}.')}.py")
        left -= found
    return found
