"""Runs the pinned di4c's main.py with a teacher and a student that lie on this machine.

Left alone, di4c takes both from the hub. Here the teacher is the adapted checkpoint of
``parameterization.checkpoint_path``, and ``dlb_student_init`` says what the student starts from:

- ``teacher``: the same weights;
- ``scratch``: new ones;
- ``hf_small``: the published small student, from its local snapshot.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dlbhpc.inside.adapters.main_program import checkout_file, lead_search, run_main

MAIN = "sdtt/src/sdtt/main.py"
PUBLISHED = "models--jdeschena--sdtt"
OWN = "latent_projection."
"""Names of di4c's own tensors begin so: they start new in every student."""


def build(loss: str, round: int, config: Any) -> Any:
    """Stands in for ``sdtt.load_small_student``: the module, with teacher and student."""
    import torch
    from sdtt.loading_utils import get_diffusion
    from sdtt.models.loading_utils import get_backbone
    from transformers import AutoTokenizer

    path = config.parameterization.checkpoint_path
    # Loaded once more by di4c itself, which ignores names that do not fit.
    state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)["state_dict"]
    module = get_diffusion(config, AutoTokenizer.from_pretrained(config.tokenizer.name))
    check_names(path, _plain(state), module.teacher[0].state_dict())
    init = config.dlb_student_init
    if init == "scratch":
        module.backbone = get_backbone(config, module.vocab_size)
    elif init == "hf_small":
        from safetensors.torch import load_file

        weights = snapshot(f"baselines_{loss}_step_{round * 10_000}") / "model.safetensors"
        state = _plain(load_file(weights))
        check_names(weights, state, module.backbone.state_dict())
        module.backbone.load_state_dict(state, strict=False)
    elif init != "teacher":
        raise SystemExit(f"dlb_student_init is {init!r}: choose teacher, scratch or hf_small")
    module.init_ema()
    # The main program would put every rank's module on the first GPU; Lightning puts it on its own.
    module.cuda = lambda *_: module
    return module


def check_names(path: Any, found: Iterable[str], network: Iterable[str]) -> None:
    """Refuse weights that are not the network's, but for di4c's own tensors."""
    given, wanted = set(found), {name for name in network if not name.startswith(OWN)}
    if given != wanted:
        missing, foreign = sorted(wanted - given), sorted(given - wanted)
        raise SystemExit(
            f"{path} does not hold this network's weights: missing {missing[:5] or 'none'}, "
            f"unexpected {foreign[:5] or 'none'}. Check the teacher and the size of the model"
        )


def snapshot(revision: str) -> Path:
    """The local snapshot of the published students at a branch, by the commit it was fetched at."""
    folder = Path(os.environ["HF_HOME"]) / "hub" / PUBLISHED
    try:
        commit = (folder / "refs" / revision).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise SystemExit(
            f"the published student {revision} is not in {folder} ({error.strerror}): "
            "fetch it with python -m dlbhpc data fetch hf_small"
        ) from error
    return folder / "snapshots" / commit


def _plain(state: dict[str, Any]) -> dict[str, Any]:
    """Names without the prefixes that compiling and wrapping leave, as di4c strips them."""
    return {
        name.replace("_orig_mod.", "").replace("backbone.", ""): value
        for name, value in state.items()
    }


if __name__ == "__main__":
    program = checkout_file(MAIN)
    # For its absolute imports (callbacks.…), and for the package before an installed one.
    lead_search(program.parent, program.parent.parent)

    import sdtt

    sdtt.load_small_student = build
    run_main(program)
