"""The teacher of a launch: which adaptation its student needs, and whether it can be adapted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dlbhpc.command import Launch
from dlbhpc.errors import DlbhpcError
from dlbhpc.inputs.teacher.adapt import Adaptation, check_teacher, ensure_adapted, is_adapted
from dlbhpc.inputs.teacher.family import check_family
from dlbhpc.inputs.teacher.loading import check_content, load_checkpoint, state_of
from dlbhpc.inputs.teacher.names import Backbone
from dlbhpc.inputs.teacher.transform import Vocabulary
from dlbhpc.layout import OutputLayout
from dlbhpc.recipe import Recipe

_BERT_MASK = 103
"""The row of [MASK] in BERT's vocabulary; GPT-2's has none."""
_MASK_ROWS = {"bert-base-uncased": _BERT_MASK}


def adaptation_of(recipe: Recipe) -> Adaptation:
    """How the teacher of ``recipe`` is adapted. Raises DlbhpcError when it is used as it is."""
    teacher, tokenizer = recipe.teacher, recipe.dataset.tokenizer
    if teacher is None or teacher.adapter is None or tokenizer is None:
        raise DlbhpcError(f"{recipe.name} adapts no teacher: it has none, or uses it as it is")
    sizes = recipe.trial.sizes if recipe.trial else {}
    return Adaptation(
        family=teacher.family,
        transformation=teacher.adapter,
        vocabulary=Vocabulary(recipe.dataset.base_vocab, _MASK_ROWS.get(tokenizer.repository)),
        backbone=Backbone(
            blocks=sizes.get("blocks", Backbone.blocks), heads=sizes.get("heads", Backbone.heads)
        ),
    )


def check_launch_teacher(launch: Launch) -> None:
    """Refuse a teacher that the student of this launch cannot learn from; writes nothing.

    Raises DlbhpcError naming the teacher and what is wrong with it.
    """
    if launch.teacher is None or launch.recipe.teacher is None:
        return
    if launch.adapted_teacher is None:
        _check_unadapted(launch.teacher, launch.recipe.teacher.family)
        return
    adaptation, output = adaptation_of(launch.recipe), launch.output
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


def _check_unadapted(teacher: Path, family: str) -> None:
    content = load_checkpoint(teacher)
    check_family(content, family, teacher)
    state_of(content, teacher)
    check_content(teacher)
    if "ema" not in content:
        raise DlbhpcError(
            f"the teacher {teacher} holds no EMA, which the student's upstream loads: take the "
            "checkpoint that the training wrote, not an export of its weights"
        )
