"""Imported by every Python of an ``upstream`` test, before anything else: see README.md."""

import importlib.machinery
import os
import sys
import types


class _Anything:
    """Accepts whatever is done with it when a module is imported."""

    def __init__(self, *_, **__):
        pass


ABSENT = {
    "causal_conv1d": ("causal_conv1d_fn", "causal_conv1d_update"),
    "mamba_ssm": (),
    "mamba_ssm.ops": (),
    "mamba_ssm.ops.selective_scan_interface": ("mamba_inner_fn", "selective_scan_fn"),
    "mamba_ssm.ops.triton": (),
    "mamba_ssm.ops.triton.layernorm": ("RMSNorm", "layer_norm_fn", "rms_norm_fn"),
    "mamba_ssm.ops.triton.selective_state_update": ("selective_state_update",),
    "evaluate": (),
    "mauve": (),
    "nltk": (),
    "nltk.translate": (),
    "nltk.translate.bleu_score": ("SmoothingFunction",),
    "timm": (),
    "timm.scheduler": ("CosineLRScheduler",),
    "torchvision": (),
    "torchvision.transforms": (),
    "wandb": (),
}
"""Modules that the upstreams import and do not use in a training, and the names they take."""


class StandIns:
    """Finds the absent modules, and torch, whose count of GPUs is then replaced."""

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        # torchmetrics looks whether torchvision is there, and would use it: only duo's own module
        # shall find it.
        if name in ABSENT and ("torchvision" not in name or "dataloader" in sys.modules):
            return importlib.machinery.ModuleSpec(name, cls, is_package=True)
        if name == "torch":
            spec = importlib.machinery.PathFinder.find_spec(name, path)
            load = spec.loader.exec_module
            spec.loader.exec_module = lambda module: (load(module), _count_devices(module))
            return spec
        return None

    @staticmethod
    def create_module(spec):
        module = types.ModuleType(spec.name)
        vars(module).update(dict.fromkeys(ABSENT[spec.name], _Anything))
        return module

    @staticmethod
    def exec_module(module):
        pass


def _count_devices(torch):
    torch.cuda.device_count = lambda: int(os.environ.get("SHIM_CUDA_DEVICES", "1"))


sys.meta_path.insert(0, StandIns)
