"""``dlbhpc data``: prepare processed datasets, verify them, hand them to the upstreams."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from dlbhpc.errors import DlbhpcError
from dlbhpc.layout import Layout

if TYPE_CHECKING:
    from dlbhpc.recipe import Dataset

BUNDLED = "pydoc"
PINNED = ("lm1b", "owt")
PREPARABLE = (BUNDLED, *PINNED)
WEIGHTS = "hf_small"
TOKENIZERS = "tokenizers"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the sub-commands of ``data`` to ``parser``."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    prepare = actions.add_parser("prepare", help="tokenize a dataset and write its manifest")
    prepare.add_argument("dataset", help=f"one of: {', '.join(PREPARABLE)}")
    prepare.add_argument("--processes", type=int, help="default: one for each core")
    verify = actions.add_parser("verify", help="compare a prepared dataset with its manifest")
    verify.add_argument("dataset", help=f"one of: {', '.join(PREPARABLE)}")
    bridge = actions.add_parser("bridge", help="write an upstream's cache (submit does it as well)")
    bridge.add_argument(
        "upstream", help="mdlm, duo, … (rdlm: the raw text, which it tokenizes itself)"
    )
    bridge.add_argument("dataset", help=f"one of: {', '.join(PINNED)}")
    fetch = actions.add_parser("fetch", help="fetch pinned tokenizers, or a student's weights")
    fetch.add_argument("what", choices=[TOKENIZERS, WEIGHTS])
    for action in (prepare, verify, bridge, fetch):
        action.add_argument(
            "--root", type=Path, metavar="DIR", help="project root (default: this checkout)"
        )
    for action in (prepare, verify, bridge):
        action.add_argument("--trial", action="store_true", help="the small data of trials")


def run(args: argparse.Namespace) -> int:
    """Do what the sub-command says."""
    layout = Layout.at(args.root)
    if args.action == "fetch":
        return _tokenizers(layout) if args.what == TOKENIZERS else _weights(layout)
    known = PINNED if args.action == "bridge" else PREPARABLE
    if args.dataset not in known:
        raise DlbhpcError(
            f"unknown dataset {args.dataset!r}; data {args.action} knows: {', '.join(known)}"
        )
    if args.trial and args.dataset != BUNDLED:
        layout = layout.of_trials()
    if args.action == "prepare":
        return _prepare(args.dataset, layout, args.processes)
    dataset = _dataset(args.dataset, layout)
    if args.action == "verify":
        from dlbhpc.data.verify import verify_dataset

        print(verify_dataset(dataset, layout))
        return 0
    return _bridge(args.upstream, dataset, layout)


def _prepare(name: str, layout: Layout, processes: int | None) -> int:
    if processes is not None and processes < 1:
        raise DlbhpcError(f"--processes {processes}: it must be at least 1")
    if name == BUNDLED:
        from dlbhpc.data import prepare_pydoc

        prepare_pydoc(layout.root)
        return 0
    from dlbhpc.data.prepare import prepare_pinned
    from dlbhpc.data.trial import pins_of

    dataset = _dataset(name, layout)
    prepare_pinned(dataset, pins_of(dataset, layout), layout, processes)
    # Some upstreams load the other dataset's tokenizer as well.
    return 0 if layout.small_data else _tokenizers(layout)


def _bridge(upstream: str, dataset: Dataset, layout: Layout) -> int:
    from dlbhpc.data.bridge import ensure_bridge
    from dlbhpc.data.text_cache import ensure_text_cache
    from dlbhpc.data.trial import pins_of
    from dlbhpc.recipe import list_recipes

    sources = {recipe.upstream.name: recipe.data_source for recipe in list_recipes()}
    if sources.get(upstream) == "training_cache":
        ensure_bridge(upstream, dataset, layout, print)
    elif sources.get(upstream) == "datasets_cache":
        ensure_text_cache(dataset.name, pins_of(dataset, layout), layout, print)
    else:
        known = sorted(name for name, source in sources.items() if source != "processed")
        raise DlbhpcError(f"unknown upstream {upstream!r}: there are {', '.join(known)}")
    return 0


def _tokenizers(layout: Layout) -> int:
    from dlbhpc.data.raw import open_tokenizer
    from dlbhpc.recipe import list_datasets

    for dataset in list_datasets():
        if dataset.name in PINNED and dataset.tokenizer is not None:
            print(open_tokenizer(dataset.tokenizer, layout))
    return 0


def _weights(layout: Layout) -> int:
    from dlbhpc.data.raw import fetch_weights
    from dlbhpc.recipe import read_recipe

    init = read_recipe("duo_di4c").student_init
    assert init is not None, "duo_di4c may start from published weights"
    print(fetch_weights(init.snapshot, layout))
    return 0


def _dataset(name: str, layout: Layout) -> Dataset:
    """The dataset's record; that of the trials when the layout is theirs."""
    from dlbhpc.recipe import list_datasets, read_recipe, trial_of

    if layout.small_data:
        return trial_of(read_recipe("mdlm", name), {}).dataset
    return next(dataset for dataset in list_datasets() if dataset.name == name)
