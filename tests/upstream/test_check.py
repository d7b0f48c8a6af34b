"""What fits an upstream's configuration, by Hydra's rules, and what is expected where it does not.

Hydra itself is the judge: each word is also composed with the same configuration.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from dlbhpc.upstream.check import check_overrides
from dlbhpc.upstream.composer import Task, error_of, stand_in
from dlbhpc.upstream.surface import Surface

FITS = [
    ["mode=eval"],
    ["logger=null"],
    ["logger.project=a"],
    ["algo=full", "algo.curriculum.start=3"],
    ["algo='full'"],
    ["callbacks.every_n.steps=2"],
    ["paths.top=a"],
    ["+new=1"],
    ["+algo.curriculum.start=1"],
    ["+callbacks.ours._target_=a.b"],
    ["+empty.ours=1"],
]
FAILS = [
    (["mod=eval"], "mod", "an existing key, as mode"),
    (["algo.curriculum.start=3"], "algo.curriculum.start", "an existing key"),
    (["algo=ful"], "algo", "an option of the group algo, as full"),
    (["algo=zzz"], "algo", "there is none like it"),
    (["+mode=eval"], "+mode", "no +, since the key exists"),
    (["algo=full", "+algo.curriculum.start=1"], "+algo.curriculum.start", "no +, since the key"),
    (["+algo=full"], "+algo", "chooses from the group algo itself"),
    (["unused=thing"], "unused", "chooses nothing from the group unused"),
]


@pytest.mark.parametrize("words", FITS, ids=" ".join)
def test_what_fits(words: list[str], surface: Surface, configs: Path) -> None:
    assert check_overrides(words, surface) == []
    assert _hydra(words, surface, configs) is None


@pytest.mark.parametrize(("words", "key", "expected"), FAILS, ids=lambda value: str(value))
def test_what_does_not_fit_is_named_with_what_was_expected(
    words: list[str], key: str, expected: str, surface: Surface, configs: Path
) -> None:
    (problem,) = check_overrides(words, surface)
    assert problem.key == key
    assert expected in problem.expected
    assert _hydra(words, surface, configs) is not None


def test_what_hydra_allows_and_we_do_not(surface: Surface, configs: Path) -> None:
    for words, expected in (
        (["++mode=eval"], "never ++"),
        (["+mode.inner=1"], "mode is a value"),
        (["+nowhere.inner=1"], "a key under a mapping that exists"),
        (["mode=a", "mode=b"], "one override of a key"),
    ):
        (problem,) = check_overrides(words, surface)
        assert expected in problem.expected
        assert _hydra(words, surface, configs) is None


def _hydra(words: list[str], surface: Surface, configs: Path) -> str | None:
    (configs / "other.yaml").unlink(missing_ok=True)
    task = Task(str(configs), "config", surface.resolvers, "joblib", ())
    stand_in(task)
    return error_of(task, tuple(words))
