"""Paths under the root, and what keeps a path inside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from dlbhpc.layout import CHECKOUT, Layout, OutputLayout, PathError


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    (tmp_path / "root").mkdir()
    return Layout.at(tmp_path / "root")


def test_the_checkout_is_the_default_root() -> None:
    assert Layout.at().root == CHECKOUT
    assert (CHECKOUT / "dlbhpc" / "layout.py").is_file()


def test_paths_lie_where_the_records_say(layout: Layout) -> None:
    root = layout.root
    assert layout.processed("lm1b-bert-128") == root / "data/processed/lm1b-bert-128"
    assert layout.manifest("owt") == root / "data/manifests/owt.json"
    assert layout.training_cache("duo", "owt") == root / "data/training_cache/duo/owt"
    assert layout.hf_datasets_cache == root / "data/raw/huggingface/datasets"
    assert layout.snapshot("jdeschena/sdtt", "abc") == (
        root / "data/raw/huggingface/hub/models--jdeschena--sdtt/snapshots/abc"
    )
    assert layout.run_folder("lm1b", "flm") == root / "checkpoints/self_trained/lm1b/flm"
    assert layout.run_folder("lm1b", "flm", trial=True) == root / "checkpoints/trials/lm1b/flm"


def test_no_record_of_a_run_is_named_as_an_upstream_names_its_config(tmp_path: Path) -> None:
    assert OutputLayout(tmp_path).composed_config.name == "composed_config.yaml"


def test_a_path_inside_is_made_absolute(layout: Layout) -> None:
    assert layout.inside(Path("a/b"), "the teacher") == layout.root / "a/b"
    assert layout.inside(layout.root / "a", "the teacher") == layout.root / "a"


@pytest.mark.parametrize("path", ["../x", "a/../../x", "/etc/passwd", "/", ".", "a/../b"])
def test_a_path_that_may_lead_outside_is_refused(layout: Layout, path: str) -> None:
    with pytest.raises(PathError, match="the teacher"):
        layout.inside(Path(path), "the teacher")


@pytest.mark.parametrize("path", ["a\nb", "a\tb", "a\x7fb", "a\x00b", "a${b}"])
def test_characters_that_no_script_or_config_can_carry_are_refused(
    layout: Layout, path: str
) -> None:
    with pytest.raises(PathError, match=r"control character|interpolation"):
        layout.inside(Path(path), "the output")


@pytest.mark.parametrize("path", ["link", "link/file", "folder/link2/file"])
def test_a_symlink_on_the_way_is_refused_wherever_it_leads(layout: Layout, path: str) -> None:
    (layout.root / "folder").mkdir()
    (layout.root / "link").symlink_to(layout.root / "folder")
    (layout.root / "folder" / "link2").symlink_to("/nowhere")
    with pytest.raises(PathError, match="passes through the symlink"):
        layout.inside(Path(path), "the output")


def test_the_root_itself_may_be_reached_through_a_symlink(layout: Layout, tmp_path: Path) -> None:
    (tmp_path / "alias").symlink_to(layout.root)
    seen = Layout.at(tmp_path / "alias")
    assert seen.root == layout.root
    assert seen.inside(tmp_path / "alias" / "x", "the output") == layout.root / "x"


@pytest.mark.parametrize("path", ["data/processed/x", "data", "upstreams/duo", "images/x.sif"])
def test_an_output_may_not_lie_among_inputs(layout: Layout, path: str) -> None:
    with pytest.raises(PathError, match="holds what runs read"):
        layout.output(Path(path), trial=False)


def test_trials_lie_by_themselves(layout: Layout) -> None:
    inside, outside = Path("checkpoints/trials/x"), Path("checkpoints/x")
    assert layout.output(inside, trial=True) == layout.root / inside
    assert layout.output(outside, trial=False) == layout.root / outside
    with pytest.raises(PathError, match="a locked run must lie outside"):
        layout.output(inside, trial=False)
    with pytest.raises(PathError, match="a trial must lie below"):
        layout.output(outside, trial=True)
