"""Imported by every Python of an ``upstream`` test, before anything else: see README.md."""

import functools
import importlib.machinery
import os
import signal
import sys
import time
import types
from pathlib import Path


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
    """Finds the absent modules, and torch, which is then adapted."""

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        # torchmetrics looks whether torchvision is there, and would use it: only duo's own module
        # shall find it.
        if name in ABSENT and ("torchvision" not in name or "dataloader" in sys.modules):
            return importlib.machinery.ModuleSpec(name, cls, is_package=True)
        if name == "torch":
            spec = importlib.machinery.PathFinder.find_spec(name, path)
            load = spec.loader.exec_module
            spec.loader.exec_module = lambda module: (load(module), _adapt(module))
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


def _adapt(torch):
    torch.cuda.device_count = lambda: int(os.environ.get("SHIM_CUDA_DEVICES", "1"))
    if not torch.cuda.is_available():
        _train_on_cpu(torch)
    if updates := _updates_before_freezing():
        optimizers = sys.modules["torch.optim.optimizer"]
        _freeze_after(updates, optimizers.register_optimizer_step_post_hook)


def _train_on_cpu(torch):
    """For rdlm, which names NCCL, a device for each rank and the compiler in its code."""
    torch.cuda.set_device = lambda device: None
    torch.compile = lambda model=None, **_: model
    join, parallel = torch.distributed.init_process_group, torch.nn.parallel.DistributedDataParallel
    wrap = parallel.__init__

    @functools.wraps(join)
    def join_with_gloo(backend=None, *others, **named):
        return join("gloo" if backend == "nccl" else backend, *others, **named)

    @functools.wraps(wrap)
    def wrap_for_cpu(self, module, device_ids=None, *others, **named):
        wrap(self, module, None, *others, **named)

    torch.distributed.init_process_group = join_with_gloo
    parallel.__init__ = wrap_for_cpu


def _updates_before_freezing():
    """Of this attempt: SHIM_FREEZE has the number of each, "4,3" of the first and the second."""
    numbers = os.environ.get("SHIM_FREEZE")
    attempt = os.environ.get("DLBHPC_ATTEMPT_FILE")
    if not numbers or not attempt:
        return 0
    of_attempts = dict(enumerate(map(int, numbers.split(",")), start=1))
    return of_attempts.get(int(Path(attempt).parent.name), 0)


def _freeze_after(updates, register):
    """Stop this process behind so many updates of the weights, as SIGSTOP does.

    What continues it asks it to stop in the same breath: it goes on when SIGTERM has come.
    """
    made = 0

    def freeze(*_):
        nonlocal made
        made += 1
        if made != updates:
            return
        came = []
        taken = signal.signal(signal.SIGTERM, lambda *_: came.append(True))
        os.kill(os.getpid(), signal.SIGSTOP)
        while not came:
            time.sleep(0.01)
        signal.signal(signal.SIGTERM, taken)
        signal.raise_signal(signal.SIGTERM)

    register(freeze)


sys.meta_path.insert(0, StandIns)
