"""The teacher of a launch: which adaptation its student needs, and whether it can be adapted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dlbhpc.command import Launch
from dlbhpc.errors import DlbhpcError
from dlbhpc.files import file_digest, remembered_digest
from dlbhpc.inputs.teacher.adapt import (
    Adaptation,
    adapted_from,
    check_teacher,
    ensure_adapted,
    source_sha256_of,
)
from dlbhpc.inputs.teacher.names import Backbone
from dlbhpc.inputs.teacher.transform import Vocabulary
from dlbhpc.inputs.teacher.unadapted import check_unadapted
from dlbhpc.layout import OutputLayout
from dlbhpc.recipe import Recipe

_BERT_MASK = 103
"""The row of [MASK] in BERT's vocabulary; GPT-2's has none."""
_MASK_ROWS = {"bert-base-uncased": _BERT_MASK}


def adaptation_of(recipe: Recipe) -> Adaptation:
    """How the teacher of ``recipe`` is adapted. Raises DlbhpcError when it is used as it is."""
    teacher = recipe.teacher
    if teacher is None or teacher.adapter is None or recipe.dataset.tokenizer is None:
        raise DlbhpcError(f"{recipe.name} adapts no teacher: it has none, or uses it as it is")
    return Adaptation(
        family=teacher.family,
        transformation=teacher.adapter,
        vocabulary=_vocabulary(recipe),
        backbone=_backbone(recipe),
    )


def teacher_is_there(launch: Launch) -> bool:
    """Whether the teacher of the launch, or what it was adapted to for this output, is there."""
    assert launch.teacher is not None, "asked of a launch with a teacher"
    return launch.teacher.is_file() or _adapted(launch) is not None


def teacher_digest(launch: Launch, begun_with: str | None = None) -> str | None:
    """SHA-256 of the launch's teacher; None where there is none.

    A teacher that is gone is known by what it was adapted to. ``begun_with`` is the digest that a
    run began with: then the teacher it was adapted from is not read again, and one that the
    upstream loads itself is read again only once its file is another.
    """
    if launch.teacher is None:
        return None
    record = _adapted(launch)
    source = source_sha256_of(record) if record else None
    if source is not None and (source == begun_with or not launch.teacher.is_file()):
        return source
    if launch.adapted_teacher is None and begun_with is not None:
        return remembered_digest(launch.teacher, launch.output.input_digest("teacher"))
    return file_digest(launch.teacher)


def check_launch_teacher(launch: Launch) -> None:
    """Refuse a teacher that the student of this launch cannot learn from; writes nothing.

    Raises DlbhpcError naming the teacher and what is wrong with it.
    """
    recipe = launch.recipe
    if launch.teacher is None or recipe.teacher is None:
        return
    if launch.adapted_teacher is None:
        check_unadapted(
            launch.teacher, recipe.teacher.family, _vocabulary(recipe), _backbone(recipe)
        )
        return
    record = _adapted(launch)
    if record is None or source_sha256_of(record) != teacher_digest(launch):
        check_teacher(launch.teacher, adaptation_of(recipe))


def ensure_adapted_teacher(launch: Launch, begun_with: str | None) -> dict[str, Any] | None:
    """The provenance of the launch's adapted teacher, which is made where it is not there.

    ``begun_with`` is the digest of the teacher that the run began with. None where the student
    takes no teacher, or takes it as it is. Raises DlbhpcError.
    """
    if launch.teacher is None or launch.adapted_teacher is None:
        return None
    record = _adapted(launch)
    if record is None or source_sha256_of(record) != begun_with:
        record = adapt_teacher(launch.recipe, launch.teacher, launch.output)
    if source_sha256_of(record) != begun_with:
        raise DlbhpcError(
            f"the teacher {launch.teacher} was replaced while the run began: put back the one that "
            f"the run was submitted with (sha256 {begun_with}), and submit it again"
        )
    return record


def adapt_teacher(
    recipe: Recipe, teacher: Path, output: OutputLayout, *, trusted: bool = False
) -> dict[str, Any]:
    """Adapt ``teacher`` for a run of ``recipe`` in ``output``; returns the provenance.

    ``trusted`` loads the checkpoint in the ordinary way. Raises DlbhpcError.
    """
    return ensure_adapted(
        teacher,
        output.adapted_teacher,
        output.adapted_teacher_provenance,
        adaptation_of(recipe),
        trusted=trusted,
    )


def _adapted(launch: Launch) -> dict[str, Any] | None:
    """The provenance of the adapted teacher that lies in the launch's output, if it is whole."""
    output = launch.output
    if launch.adapted_teacher is None:
        return None
    return adapted_from(
        output.adapted_teacher,
        output.adapted_teacher_provenance,
        adaptation_of(launch.recipe),
        lambda path: remembered_digest(path, output.input_digest("teacher_adapted")),
    )


def _vocabulary(recipe: Recipe) -> Vocabulary:
    tokenizer = recipe.dataset.tokenizer
    mask_row = _MASK_ROWS.get(tokenizer.repository) if tokenizer else None
    return Vocabulary(recipe.dataset.base_vocab, mask_row)


def _backbone(recipe: Recipe) -> Backbone:
    sizes = recipe.trial.sizes if recipe.trial else {}
    return Backbone(
        blocks=sizes.get("blocks", Backbone.blocks), heads=sizes.get("heads", Backbone.heads)
    )
