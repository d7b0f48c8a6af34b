"""The adapted teacher: a checkpoint that the student's upstream loads as it is, and its provenance.

Both are published whole or not at all, the provenance last: an adapted teacher without it, or with
one that says otherwise, is made again.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlbhpc.inputs.teacher import names, transform
from dlbhpc.inputs.teacher.family import check_family
from dlbhpc.inputs.teacher.loading import (
    check_content,
    load_checkpoint,
    release_mapped,
    state_of,
)
from dlbhpc.inputs.teacher.names import Backbone, TeacherError, keys_digest
from dlbhpc.inputs.teacher.transform import Adapted, Vocabulary, adapt_state
from dlbhpc.steps.files import regular_digest, replace_file, sync_folder

if TYPE_CHECKING:
    from torch import Tensor

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Adaptation:
    """What decides an adapted teacher, apart from the teacher itself.

    ``transformation`` is one of transform.TRANSFORMATIONS.
    """

    family: str
    transformation: str
    vocabulary: Vocabulary
    backbone: Backbone


def version_digest() -> str:
    """The digest of the code that decides what an adapted teacher holds."""
    digest = hashlib.sha256()
    for module in (names, transform):
        digest.update(Path(str(module.__file__)).read_bytes())
    return digest.hexdigest()


def check_teacher(source: Path, adaptation: Adaptation, *, trusted: bool = False) -> None:
    """Refuse a teacher that cannot be adapted; writes nothing. Raises TeacherError."""
    _adapted(source, adaptation, trusted)


def adapted_from(
    target: Path,
    provenance: Path,
    adaptation: Adaptation,
    digest_of: Callable[[Path], str] = regular_digest,
) -> dict[str, Any] | None:
    """The provenance of ``target`` when that is whole and adapted like this, or None.

    It names the source, which need not be there any more; paths are not compared: the project may
    have moved as a whole. ``digest_of`` gives the SHA-256 of a file.
    """
    record = _read(provenance)
    if (
        record is None
        or record.get("transformation_sha256") != version_digest()
        or record.get("adaptation") != asdict(adaptation)
    ):
        return None
    try:
        found = digest_of(target)
    except OSError:
        return None
    return record if found == record.get("output", {}).get("sha256") else None


def source_sha256_of(record: Mapping[str, Any]) -> str | None:
    """The digest of the teacher that a provenance names."""
    sha256 = record.get("source", {}).get("sha256")
    return None if sha256 is None else str(sha256)


def ensure_adapted(
    source: Path, target: Path, provenance: Path, adaptation: Adaptation, *, trusted: bool = False
) -> dict[str, Any]:
    """Adapt ``source`` to ``target`` unless that is there already; returns the provenance.

    Raises TeacherError when the source cannot be this student's teacher.
    """
    if not source.is_file():
        raise TeacherError(f"there is no checkpoint {source}")
    source_sha256 = regular_digest(source)
    recorded = adapted_from(target, provenance, adaptation)
    if recorded is not None and source_sha256_of(recorded) == source_sha256:
        return recorded
    adapted, evidence = _adapted(source, adaptation, trusted)
    target.parent.mkdir(parents=True, exist_ok=True)
    provenance.unlink(missing_ok=True)
    sha256 = _publish({"state_dict": dict(adapted.state)}, target)
    if regular_digest(source) != source_sha256:
        target.unlink()
        raise TeacherError(f"the teacher {source} was changed while it was adapted: try again")
    record = {
        "schema_version": SCHEMA_VERSION,
        "source": {"path": str(source), "sha256": source_sha256},
        "output": {"path": str(target), "sha256": sha256},
        "teacher_family": adaptation.family,
        "teacher_family_evidence": evidence,
        "transformation": adaptation.transformation,
        "transformation_sha256": version_digest(),
        "source_mask_index": adapted.source_mask,
        "target_mask_index": adaptation.vocabulary.base,
        "source_vocab": adapted.sizes.vocab,
        "target_vocab": adaptation.vocabulary.target,
        "hidden_size": adapted.sizes.hidden,
        "state_keys_sha256": keys_digest(adapted.state),
        "adaptation": asdict(adaptation),
        "trusted": trusted,
    }
    _write_record(provenance, record)
    return record


def _adapted(source: Path, adaptation: Adaptation, trusted: bool) -> tuple[Adapted, str]:
    """The adapted state, and what told the teacher's family."""
    content = load_checkpoint(source, trusted=trusted)
    check_content(source)
    evidence = check_family(content, adaptation.family, source)
    adapted = adapt_state(
        state_of(content, source),
        adaptation.transformation,
        adaptation.vocabulary,
        adaptation.backbone,
        f"the teacher {source}",
        # What is built in the ordinary way need not be mapped from the file.
        release=_keep if trusted else release_mapped,
    )
    return adapted, evidence


def _keep(tensor: Tensor) -> None:
    """Release nothing."""


def _publish(content: Mapping[str, Any], target: Path) -> str:
    """Save ``content`` under ``target`` at once; returns the sha256 of the file."""
    import torch

    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        with temporary.open("wb") as file:
            torch.save(content, file)
            file.flush()
            os.fsync(file.fileno())
        sha256 = regular_digest(temporary)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(target.parent)
    return sha256


def _write_record(path: Path, record: Mapping[str, Any]) -> None:
    data = (json.dumps(record, indent=1, sort_keys=True) + "\n").encode()
    replace_file(path, data, path.with_name(f".{path.name}.{secrets.token_hex(4)}"))


def _read(path: Path) -> dict[str, Any] | None:
    """The provenance that is there; None for a missing or torn one."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) else None
