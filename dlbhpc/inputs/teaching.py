"""The teacher of a launch: which adaptation its student needs, and whether it can be adapted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dlbhpc.command import Launch
from dlbhpc.errors import DlbhpcError
from dlbhpc.inputs.teacher.adapt import Adaptation, check_teacher, ensure_adapted, is_adapted
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


def check_launch_teacher(launch: Launch) -> None:
    """Refuse a teacher that the student of this launch cannot learn from; writes nothing.

    Raises DlbhpcError naming the teacher and what is wrong with it.
    """
    recipe, output = launch.recipe, launch.output
    if launch.teacher is None or recipe.teacher is None:
        return
    if launch.adapted_teacher is None:
        check_unadapted(
            launch.teacher, recipe.teacher.family, _vocabulary(recipe), _backbone(recipe)
        )
        return
    adaptation = adaptation_of(recipe)
    if not is_adapted(
        launch.teacher, output.adapted_teacher, output.adapted_teacher_provenance, adaptation
    ):
        check_teacher(launch.teacher, adaptation)


def ensure_adapted_teacher(launch: Launch) -> dict[str, Any] | None:
    """The provenance of the launch's adapted teacher, which is made where it is not there.

    None where the student takes no teacher, or takes it as it is. Raises DlbhpcError.
    """
    if launch.teacher is None or launch.adapted_teacher is None:
        return None
    return adapt_teacher(launch.recipe, launch.teacher, launch.output)


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


def _vocabulary(recipe: Recipe) -> Vocabulary:
    tokenizer = recipe.dataset.tokenizer
    mask_row = _MASK_ROWS.get(tokenizer.repository) if tokenizer else None
    return Vocabulary(recipe.dataset.base_vocab, mask_row)


def _backbone(recipe: Recipe) -> Backbone:
    sizes = recipe.trial.sizes if recipe.trial else {}
    return Backbone(
        blocks=sizes.get("blocks", Backbone.blocks), heads=sizes.get("heads", Backbone.heads)
    )
