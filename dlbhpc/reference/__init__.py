"""The bundled upstream: a small masked-diffusion language model on Hydra and Lightning.

It has the command-line surface of the pinned upstreams, so that one path through the toolkit
serves both, and needs nothing that is not bundled.
"""
