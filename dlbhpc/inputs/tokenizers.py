"""The tokenizer snapshots that a command names: an upstream that is offline dies without them."""

from __future__ import annotations

import re

from dlbhpc.command import Launch
from dlbhpc.errors import DlbhpcError
from dlbhpc.layout import Layout

FILES = ("tokenizer.json", "config.json")
"""Without config.json transformers takes a class without special tokens."""
FETCH = "python -m dlbhpc data fetch tokenizers"


def check_tokenizers(launch: Launch) -> None:
    """Refuse a launch whose tokenizers are not there, or not those of its pins.

    Raises DlbhpcError naming the file and the command that fetches it. A trial's lie with its data.
    """
    if launch.trial is not None:
        return
    hub = launch.layout.hf_home / "hub"
    snapshot = re.compile(rf"{re.escape(str(hub))}/models--[^/'\"]+/snapshots/[\w.-]+")
    folders = {found[0] for word in launch.argv if (found := snapshot.search(word))}
    for folder in sorted(folders):
        for name in FILES:
            _require(launch.layout, f"{folder}/{name}")
    pinned = launch.recipe.dataset.tokenizer
    if launch.recipe.data_source == "datasets_cache" and pinned is not None:
        # Asked for by its name, which finds what refs/main names.
        folder = str(launch.layout.snapshot(pinned.repository, pinned.revision))
        for name in FILES:
            _require(launch.layout, f"{folder}/{name}")
        main = launch.layout.snapshot(pinned.repository, pinned.revision).parents[1] / "refs/main"
        named = main.read_text(encoding="utf-8").strip() if main.is_file() else "nothing"
        if named != pinned.revision:
            raise DlbhpcError(
                f"{main} names {named}, and {launch.recipe.upstream.name} loads what it names: "
                f"{pinned.revision} is the pin; write that into it, or remove it and run {FETCH}"
            )


def _require(layout: Layout, path: str) -> None:
    if not (layout.root / path).is_file():
        raise DlbhpcError(f"the tokenizer's {path} is missing, and the run is offline: {FETCH}")
