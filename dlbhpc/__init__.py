"""Train diffusion language models on SLURM clusters with paper-locked recipes."""

__version__ = "0.1.0"
