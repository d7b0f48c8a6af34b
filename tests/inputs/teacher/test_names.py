"""What a backbone's state must hold."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlbhpc.inputs.teacher.names import (
    INV_FREQ,
    Backbone,
    TeacherError,
    check,
    expected,
    keys_digest,
    normalised,
)

PREFIXES = (
    "",
    "backbone.",
    "_orig_mod.",
    "backbone._orig_mod.",
    "_orig_mod.backbone.",
    "_orig_mod.backbone._orig_mod.",
    "_orig_mod._orig_mod.",
)
BACKBONE = Backbone(blocks=3, heads=4)
SIZES = {"h": 16, "c": 6, "f": 10, "v": 31}


def shapes(blocks: int = 3) -> dict[str, tuple[int, ...]]:
    return {
        name: tuple(int(unit[:-1] or 1) * SIZES[unit[-1]] for unit in form.split())
        for name, form in expected(blocks).items()
    }


@given(st.sampled_from(PREFIXES))
def test_prefixes_of_compiling_and_wrapping_go(prefix: str) -> None:
    names = [prefix + name for name in expected(2)]
    assert normalised(names, "here") == dict(zip(expected(2), names, strict=True))


def test_one_backbone_prefix_goes_and_a_second_one_stays() -> None:
    assert normalised(["backbone.backbone.x"], "here") == {"backbone.x": "backbone.backbone.x"}
    assert normalised(["x.backbone.y"], "here") == {"x.backbone.y": "x.backbone.y"}


def test_names_that_become_the_same_are_an_error() -> None:
    with pytest.raises(TeacherError, match=r"'backbone.x' and 'backbone._orig_mod.x' are both 'x'"):
        normalised(["backbone.x", "backbone._orig_mod.x"], "here")


def test_a_locked_recipe_has_130_names_and_a_buffer() -> None:
    assert len(expected(Backbone().blocks)) == 130
    assert INV_FREQ not in expected(12)


def test_the_whole_set_is_accepted_with_and_without_its_buffer() -> None:
    assert check(shapes(), BACKBONE, "here").hidden == 16
    assert check({**shapes(), INV_FREQ: (2,)}, BACKBONE, "here").vocab == 31


@given(st.sampled_from(sorted(expected(3))))
def test_a_missing_name_is_named(name: str) -> None:
    incomplete = {key: shape for key, shape in shapes().items() if key != name}
    with pytest.raises(TeacherError, match=rf"it lacks {name}$"):
        check(incomplete, BACKBONE, "here")


def test_an_unexpected_name_is_named() -> None:
    with pytest.raises(TeacherError, match=r"it has the unexpected sigma_map_prime.x$"):
        check({**shapes(), "sigma_map_prime.x": (1,)}, BACKBONE, "here")


@pytest.mark.parametrize(("found", "wanted"), [(11, 12), (12, 11)])
def test_another_number_of_blocks_is_named(found: int, wanted: int) -> None:
    with pytest.raises(TeacherError, match=rf"\({found} blocks, not {wanted}\)"):
        check(shapes(found), Backbone(blocks=wanted, heads=4), "here")


@given(st.sampled_from(sorted(expected(3))), st.data())
def test_a_wrong_rank_or_size_is_named(name: str, data: st.DataObject) -> None:
    right = shapes()[name]
    wrong = data.draw(
        st.one_of(
            st.just((*right, 1)),
            st.just(right[:-1]),
            st.integers(0, len(right) - 1).map(
                lambda i: tuple(size + 1 if i == j else size for j, size in enumerate(right))
            ),
        )
    )
    if name == "sigma_map.mlp.0.weight" and len(wrong) == 2 and wrong[0] == right[0]:
        return  # the number of frequencies is free
    with pytest.raises(TeacherError, match=r"has the shape|dimensions"):
        check({**shapes(), name: wrong}, BACKBONE, "here")


def test_heads_that_do_not_divide_the_hidden_size_are_an_error() -> None:
    with pytest.raises(TeacherError, match="a hidden size of 16 has no 5 heads"):
        check(shapes(), Backbone(blocks=3, heads=5), "here")
    with pytest.raises(TeacherError, match=r"rotary_emb.inv_freq has the shape \(3,\)"):
        check({**shapes(), INV_FREQ: (3,)}, BACKBONE, "here")


def test_the_digest_of_the_names_is_that_of_the_sorted_names() -> None:
    assert keys_digest(["b", "a"]) == keys_digest(["a", "b"]) != keys_digest(["ab"])
