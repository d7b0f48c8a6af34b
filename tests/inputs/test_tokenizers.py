"""The tokenizers that a locked run loads offline are there before it is submitted."""

from __future__ import annotations

from pathlib import Path

import pytest

from dlbhpc.command import Launch, Request, plan_launch
from dlbhpc.errors import DlbhpcError
from dlbhpc.inputs.tokenizers import FILES, check_tokenizers

PINS = {
    "bert-base-uncased": "86b5e0934494bd15c9632b12f734a8a67f723594",
    "gpt2": "607a30d783dfa663caf39e06633721c8d4cfcd7e",
}


def fetched(launch: Launch, *names: str) -> None:
    for name in names:
        folder = launch.layout.snapshot(name, PINS[name])
        folder.mkdir(parents=True)
        for file in FILES:
            (folder / file).touch()


@pytest.mark.parametrize(
    ("recipe", "dataset", "needed"),
    [
        ("mdlm", "lm1b", ("bert-base-uncased", "gpt2")),
        ("duo_dcd", "lm1b", ("bert-base-uncased", "gpt2")),
        ("mdlm", "owt", ("gpt2",)),
        ("mdlm_di4c", "lm1b", ("bert-base-uncased",)),
    ],
)
def test_each_tokenizer_that_the_command_names_is_needed(
    tmp_path: Path, recipe: str, dataset: str, needed: tuple[str, ...]
) -> None:
    launch = plan_launch(Request(recipe, dataset, root=tmp_path / "a root"))
    for name in needed:
        pattern = rf"models--{name}/.*tokenizer\.json is missing.*data fetch tokenizers"
        with pytest.raises(DlbhpcError, match=pattern):
            check_tokenizers(launch)
        fetched(launch, name)
    check_tokenizers(launch)
    (launch.layout.snapshot(needed[0], PINS[needed[0]]) / "config.json").unlink()
    with pytest.raises(DlbhpcError, match=r"config\.json is missing"):
        check_tokenizers(launch)


def test_the_one_that_is_loaded_by_its_name_is_the_pinned_one(tmp_path: Path) -> None:
    launch = plan_launch(Request("rdlm", root=tmp_path))
    fetched(launch, "bert-base-uncased")
    with pytest.raises(DlbhpcError, match=r"refs/main names nothing"):
        check_tokenizers(launch)
    folder = launch.layout.snapshot("bert-base-uncased", PINS["bert-base-uncased"])
    main = folder.parents[1] / "refs" / "main"
    main.parent.mkdir()
    main.write_text("a-newer-revision")
    with pytest.raises(DlbhpcError, match=r"refs/main names a-newer-revision.*is the pin"):
        check_tokenizers(launch)
    main.write_text(PINS["bert-base-uncased"])
    check_tokenizers(launch)


def test_a_trials_tokenizers_lie_with_its_data(tmp_path: Path) -> None:
    check_tokenizers(plan_launch(Request("mdlm", trial={}, root=tmp_path)))
