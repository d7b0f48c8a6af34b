"""The composed configuration is told from what an upstream prints before it."""

from __future__ import annotations

import pytest

from dlbhpc.errors import DlbhpcError
from dlbhpc.recipe import read_recipe
from dlbhpc.upstream.composed import composed_yaml

CONFIG = "mode: train\nseed: 42\nalgo:\n  name: flm\n"


def test_a_line_that_an_import_prints_is_no_part_of_the_configuration() -> None:
    flm = read_recipe("flm").upstream
    printed = "DIT: USE_COMPILE=False\n  indented: 1\n" + CONFIG
    assert composed_yaml(printed, flm) == CONFIG
    assert composed_yaml(CONFIG, flm) == CONFIG


def test_without_a_configuration_what_was_printed_is_shown() -> None:
    with pytest.raises(DlbhpcError, match=r"mdlm printed no configuration.*'hello: world'"):
        composed_yaml("hello: world\n", read_recipe("mdlm").upstream)
