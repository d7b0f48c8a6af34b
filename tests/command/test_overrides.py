"""Words of a Hydra command line that Hydra reads back as what was meant."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlbhpc.command.overrides import attempt_argv, compose_argv, fill, override
from dlbhpc.errors import DlbhpcError

texts = st.text(st.characters(exclude_categories=["Cc", "Cs"])).filter(lambda t: "${" not in t)


def parsed(word: str) -> Any:
    from hydra.core.override_parser.overrides_parser import OverridesParser

    return OverridesParser.create().parse_override(word).value()


@given(texts | st.text("a'\\\" =,[]{}()$:%~#", max_size=12).filter(lambda t: "${" not in t))
def test_hydra_reads_back_every_text(text: str) -> None:
    value = parsed(override("key", text))
    assert value == text
    assert isinstance(value, str)


@given(st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.booleans() | st.none())
def test_hydra_reads_back_every_other_value(value: float | bool | None) -> None:
    read = parsed(override("key", value))
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize(
    ("value", "word"),
    [
        (True, "k=true"),
        (False, "k=false"),
        (None, "k=null"),
        (0.0003, "k=0.0003"),
        (6e-5, "k=6e-05"),
        (-3.0, "k=-3.0"),
        ("/a/b-c_d.ckpt", "k=/a/b-c_d.ckpt"),
        ("lm1b-wrap", "k=lm1b-wrap"),
        ("null", "k='null'"),
        ("True", "k='True'"),
        ("/with space/it's", "k='/with space/it\\'s'"),
        ("", "k=''"),
    ],
)
def test_words_are_plain_where_they_can_be(value: Any, word: str) -> None:
    assert override("k", value) == word


def test_an_interpolation_in_a_value_is_refused() -> None:
    with pytest.raises(DlbhpcError, match=r"k: .* interpolation"):
        override("k", "/a/${oc.env:HOME}")


def test_one_placeholder_takes_its_value_with_its_type() -> None:
    values = {"on": True, "rate": 0.5, "name": "x", "none": None}
    assert fill("k", "{on}", values) is True
    assert fill("k", "{rate}", values) == 0.5
    assert fill("k", "{none}", values) is None
    assert fill("k", "a/{name}/{rate}.{on}", values) == "a/x/0.5.true"
    assert fill("k", 7, values) == 7
    assert fill("k", "", values) == ""


@pytest.mark.parametrize("text", ["{teacher}", "a/{teacher}", "{}", "{name:>9}", "{name!r}"])
def test_a_placeholder_that_does_not_exist_is_named(text: str) -> None:
    with pytest.raises(DlbhpcError, match=r"some\.key="):
        fill("some.key", text, {"name": "x"})


def test_an_attempt_resumes_only_when_there_is_a_step() -> None:
    argv = ["python", "-u", "main.py", "checkpointing.resume_from_ckpt=true", "seed=1"]
    assert attempt_argv(argv, resume=True) == argv
    assert attempt_argv(argv, resume=False) == [
        *argv[:3],
        "checkpointing.resume_from_ckpt=false",
        "seed=1",
    ]
    assert attempt_argv(["python", "x"], resume=False) == ["python", "x"]


def test_composing_asks_for_the_resolved_job_config() -> None:
    assert compose_argv(("python", "x")) == ["python", "x", "--cfg", "job", "--resolve"]


def test_values_survive_a_real_composition(tmp_path: Path) -> None:
    from hydra import compose, initialize_config_dir

    (tmp_path / "config.yaml").write_text("a: null\nb: null\n")
    path = "/it's a path/with \\ and =,[]{}:"
    with initialize_config_dir(str(tmp_path), version_base="1.3"):
        config = compose("config", [override("a", path), override("b", 3e-4)])
    assert config.a == path
    assert math.isclose(config.b, 3e-4)
