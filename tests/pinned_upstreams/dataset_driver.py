"""Runs an upstream's own dataset function on texts at hand, in the process of a test.

Arguments: a JSON file with {"source", "module", "tokenizer", "length", "texts", "held_out",
"cuts"}, where each cut is [dataset name, mode], and the file for the blocks of each cut.
"""

import importlib
import json
import sys
import tempfile
from pathlib import Path

import datasets
import lightning  # noqa: F401  (before duo's module, for which the shims answer for torchvision)
import omegaconf

request = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
sys.path.insert(0, request["source"])
dataloader = importlib.import_module(request["module"])


def load_dataset(name, *_, split=None, **__):
    """The texts in the place of the hub's: named splits, or what the slices ask for."""
    everything = datasets.Dataset.from_dict({"text": request["texts"]})
    kept = len(everything) - request["held_out"]
    slices = {
        "train[:-100000]": range(kept),
        "train[-100000:]": range(kept, len(everything)),
    }
    if split is not None:
        return everything.select(slices[split])
    return datasets.DatasetDict(train=everything, test=everything)


datasets.load_dataset = load_dataset
config = omegaconf.OmegaConf.create({"data": {"tokenizer_name_or_path": request["tokenizer"]}})
tokenizer = dataloader.get_tokenizer(config)
blocks = []
for name, mode in request["cuts"]:
    with tempfile.TemporaryDirectory() as cache:
        made = dataloader.get_dataset(
            name,
            tokenizer,
            wrap=True,
            mode=mode,
            cache_dir=cache,
            block_size=request["length"],
            num_proc=1,
        )
        blocks.append(made.with_format(None)["input_ids"][:])
Path(sys.argv[2]).write_text(json.dumps(blocks), encoding="utf-8")
