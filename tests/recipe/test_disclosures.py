"""Where an upstream's README, script or configuration says otherwise, the recipe discloses it."""

from __future__ import annotations

import pytest

from dlbhpc.cli.main import main

# recipe, dataset: what a reader must be told
DISCLOSED: dict[tuple[str, str], tuple[str, ...]] = {
    ("flm", "lm1b"): ("1,500,000", "32 per device"),
    ("flm", "owt"): ("1,500,000", "32 per device"),
    ("fmlm", "lm1b"): (
        "1,000,000 steps", "loss weighting", "probability 64", "squared error", "never resume",
    ),
    ("fmlm", "owt"): ("global batch of 128", "1,000,000 steps", "never resume"),
    ("duo", "owt"): ("-3.55 to -1.85", "32 per device"),
    ("duo_dcd", "owt"): (
        "50,000 steps", "warm-up of 500", "every 1,000 steps on 8 batches", "32 steps", "EMA decay",
    ),
    ("mdlm", "owt"): ("generative perplexity",),
    ("mdlm", "lm1b"): ("does not wrap lm1b", "no script"),
    ("candi", "owt"): ("200,000 steps", "0.05", "1e-3", "constant learning rate", "OpenWebText"),
    ("candi", "lm1b"): ("no script for lm1b",),
    ("rdlm", "lm1b"): ("1,000,001", "every 50,000", "AdamW"),
    ("mdlm_sdtt", "lm1b"): ("3e-4", "rounds 1 to 7"),
    ("duo_di4c", "lm1b"): ("1,000,000 steps", "seven rounds", "ignores the time"),
    ("mdlm_di4c", "owt"): ("1,000,000 steps", "seven rounds"),
}  # fmt: skip


@pytest.mark.parametrize(("recipe", "dataset"), DISCLOSED)
def test_the_differences_from_the_upstream_are_shown(
    recipe: str, dataset: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["recipes", "show", recipe, "--dataset", dataset]) == 0
    shown = capsys.readouterr().out
    disclosed = shown.partition("differences from the upstream")[2]
    for part in DISCLOSED[recipe, dataset]:
        assert part in disclosed


def test_where_nothing_differs_nothing_is_disclosed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes", "show", "duo", "--dataset", "lm1b"]) == 0
    assert "differences from the upstream" not in capsys.readouterr().out
