"""A copy of the configuration that a test may damage."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from dlbhpc.layout import CONF


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    return Path(shutil.copytree(CONF, tmp_path / "conf"))
