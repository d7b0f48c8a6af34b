"""A teacher that its student's upstream loads as it is, held to what that loader takes from it.

duo (duo_dcd) loads it as a Lightning checkpoint, strictly and by name, its EMA included. flm (fmlm)
fills its network from the EMA by position, whatever is there. Both drop what is named ``teacher*``:
the teacher's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlbhpc.inputs.teacher.family import check_family
from dlbhpc.inputs.teacher.loading import (
    check_content,
    load_checkpoint,
    release_mapped,
    state_of,
)
from dlbhpc.inputs.teacher.names import (
    INV_FREQ,
    Backbone,
    TeacherError,
    check,
    expected,
    normalised,
)
from dlbhpc.inputs.teacher.transform import Vocabulary, check_finite, check_vocabulary

if TYPE_CHECKING:
    from torch import Tensor

_STRICT = frozenset({"uniform_duo"})
"""The families whose upstream loads every tensor by its exact name."""
_PREFIX = "backbone."


def check_unadapted(path: Path, family: str, vocabulary: Vocabulary, backbone: Backbone) -> None:
    """Refuse a teacher that cannot be used as it is; writes nothing.

    Raises TeacherError naming the file and what is wrong with it.
    """
    content = load_checkpoint(path)
    check_content(path)
    check_family(content, family, path)
    where = f"the teacher {path}"
    source = {
        name: tensor
        for name, tensor in state_of(content, path).items()
        if not name.startswith("teacher")
    }
    names = normalised(source, where)
    state: dict[str, Tensor] = {short: source[name] for short, name in names.items()}
    sizes = check({name: tuple(tensor.shape) for name, tensor in state.items()}, backbone, where)
    check_vocabulary(sizes, vocabulary, where)
    if family in _STRICT:
        _check_loads_by_name(content, names, where)
    averages = _averages(content, state, backbone, where)
    for name, tensor in {**state, **averages}.items():
        check_finite(name, tensor, where)
        release_mapped(tensor)


def _check_loads_by_name(content: Mapping[str, Any], names: Mapping[str, str], where: str) -> None:
    if "loops" not in content:
        raise TeacherError(f"{where} lacks loops: it is no checkpoint of Lightning's, as duo needs")
    if INV_FREQ not in names:
        raise TeacherError(f"{where} lacks {INV_FREQ}, which duo loads with the weights")
    for short, name in names.items():
        if name != _PREFIX + short:
            raise TeacherError(
                f"{where}: {name} is not called {_PREFIX}{short}, and duo would not find it: take "
                "the checkpoint that its training left"
            )


def _averages(
    content: Mapping[str, Any], state: Mapping[str, Tensor], backbone: Backbone, where: str
) -> dict[str, Tensor]:
    """The averages of the EMA, by a name for each. They are a list in the parameters' order."""
    averages = _shadow_params(content, where)
    parameters = list(expected(backbone.blocks))
    if len(averages) != len(parameters):
        raise TeacherError(
            f"{where}: its EMA has {len(averages)} averages, the backbone has {len(parameters)} "
            "parameters"
        )
    for name, average in zip(parameters, averages):
        if average.shape != state[name].shape:
            raise TeacherError(
                f"{where}: the EMA of {name} has the shape {tuple(average.shape)}, the parameter "
                f"has {tuple(state[name].shape)}: its averages are not in the backbone's order"
            )
    return {f"the EMA of {name}": average for name, average in zip(parameters, averages)}


def _shadow_params(content: Mapping[str, Any], where: str) -> list[Tensor]:
    import torch

    ema = content.get("ema")
    averages = ema.get("shadow_params") if isinstance(ema, dict) else None
    if not isinstance(averages, (list, tuple)) or not all(
        isinstance(average, torch.Tensor) for average in averages
    ):
        raise TeacherError(
            f"{where} holds no EMA, which the student's upstream loads: take the checkpoint that "
            "the training wrote, not an export of its weights"
        )
    return list(averages)
