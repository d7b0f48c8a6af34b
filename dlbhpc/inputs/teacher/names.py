"""What the state of a DIT backbone must hold: its names, and how their shapes hang together."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dlbhpc.errors import DlbhpcError

EMBEDDING = "vocab_embed.embedding"
OUTPUT_WEIGHT = "output_layer.linear.weight"
OUTPUT_BIAS = "output_layer.linear.bias"
VOCABULARY = (EMBEDDING, OUTPUT_WEIGHT, OUTPUT_BIAS)
"""The tensors that have a row for each token."""
INV_FREQ = "rotary_emb.inv_freq"
"""A buffer that follows from the head size: it may be missing in a source."""

# Shapes in units of h (hidden), c (condition), f (frequencies of the noise level), v (vocabulary).
_BEFORE = {
    EMBEDDING: "v h",
    "sigma_map.mlp.0.weight": "c f",
    "sigma_map.mlp.0.bias": "c",
    "sigma_map.mlp.2.weight": "c c",
    "sigma_map.mlp.2.bias": "c",
}
_BLOCK = {
    "norm1.weight": "h",
    "attn_qkv.weight": "3h h",
    "attn_out.weight": "h h",
    "norm2.weight": "h",
    "mlp.0.weight": "4h h",
    "mlp.0.bias": "4h",
    "mlp.2.weight": "h 4h",
    "mlp.2.bias": "h",
    "adaLN_modulation.weight": "6h c",
    "adaLN_modulation.bias": "6h",
}
_AFTER = {
    "output_layer.norm_final.weight": "h",
    OUTPUT_WEIGHT: "v h",
    OUTPUT_BIAS: "v",
    "output_layer.adaLN_modulation.weight": "2h c",
    "output_layer.adaLN_modulation.bias": "2h",
}
_UNITS = {"h": "hidden size", "c": "condition size", "f": "frequencies", "v": "vocabulary"}
_COMPILED = "_orig_mod."
_BACKBONE = "backbone."
_SHOWN = 4


@dataclass(frozen=True)
class Backbone:
    """The size of a backbone: what a recipe (or a trial of it) trains."""

    blocks: int = 12
    heads: int = 12


@dataclass(frozen=True)
class Sizes:
    """What the shapes of a state say."""

    vocab: int
    hidden: int


class TeacherError(DlbhpcError):
    """A checkpoint that cannot be this student's teacher."""


def normalised(names: Iterable[str], where: str) -> dict[str, str]:
    """Each name without the prefixes of compiling and wrapping -> the name it has in ``where``.

    ``_orig_mod.`` goes before and after one ``backbone.``, which goes as well. Raises TeacherError
    when two names become the same.
    """
    found: dict[str, str] = {}
    for name in names:
        short = _without_compiled(name)
        if short.startswith(_BACKBONE):
            short = _without_compiled(short[len(_BACKBONE) :])
        if short in found:
            raise TeacherError(
                f"{where}: {found[short]!r} and {name!r} are both {short!r} without their prefixes"
            )
        found[short] = name
    return found


def expected(blocks: int) -> dict[str, str]:
    """Every parameter that a backbone of so many blocks has, and its shape.

    They stand in the order in which the network registers them: that of an EMA's averages.
    """
    return {
        **_BEFORE,
        **{f"blocks.{i}.{name}": form for i in range(blocks) for name, form in _BLOCK.items()},
        **_AFTER,
    }


def check(shapes: Mapping[str, tuple[int, ...]], backbone: Backbone, where: str) -> Sizes:
    """Refuse a state that is not exactly such a backbone; ``shapes`` has normalised names.

    Raises TeacherError naming what is missing, unexpected, or of another rank or size.
    """
    forms = expected(backbone.blocks)
    missing = [name for name in forms if name not in shapes]
    extra = [name for name in shapes if name not in forms and name != INV_FREQ]
    if missing or extra:
        found = len({match[1] for name in shapes if (match := re.match(r"blocks\.(\d+)\.", name))})
        counted = "" if found == backbone.blocks else f" ({found} blocks, not {backbone.blocks})"
        parts = [
            f"{what} {_shown(names)}"
            for what, names in (("it lacks", missing), ("it has the unexpected", extra))
            if names
        ]
        raise TeacherError(
            f"{where} does not hold the backbone that is needed{counted}: {'; '.join(parts)}"
        )
    sizes: dict[str, int] = {}
    for name, form in forms.items():
        _check_shape(name, shapes[name], form.split(), sizes, where)
    _check_heads(shapes, sizes["h"], backbone.heads, where)
    return Sizes(vocab=sizes["v"], hidden=sizes["h"])


def keys_digest(names: Iterable[str]) -> str:
    """The digest of the sorted names of a state."""
    return hashlib.sha256("\n".join(sorted(names)).encode()).hexdigest()


def _check_shape(
    name: str, shape: tuple[int, ...], form: list[str], sizes: dict[str, int], where: str
) -> None:
    if len(shape) != len(form):
        raise TeacherError(f"{where}: {name} has {len(shape)} dimensions, it must have {len(form)}")
    for size, unit in zip(shape, form):
        times, letter = int(unit[:-1] or 1), unit[-1]
        known = sizes.setdefault(letter, size // times)
        if size != times * known:
            raise TeacherError(
                f"{where}: {name} has the shape {tuple(shape)}, which does not go with "
                f"a {_UNITS[letter]} of {known}"
            )


def _check_heads(
    shapes: Mapping[str, tuple[int, ...]], hidden: int, heads: int, where: str
) -> None:
    if hidden % (2 * heads):
        raise TeacherError(f"{where}: a hidden size of {hidden} has no {heads} heads")
    rotary = (hidden // heads // 2,)
    if tuple(shapes.get(INV_FREQ, rotary)) != rotary:
        raise TeacherError(
            f"{where}: {INV_FREQ} has the shape {tuple(shapes[INV_FREQ])}, with {heads} heads it "
            f"must be {rotary}"
        )


def _without_compiled(name: str) -> str:
    while name.startswith(_COMPILED):
        name = name[len(_COMPILED) :]
    return name


def _shown(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
