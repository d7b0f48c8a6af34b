"""The diffusion transformer."""

from __future__ import annotations

import re

import torch

from dlbhpc.reference.model import DiT, ModelConfig, Rotary, rotate

CONFIG = ModelConfig(
    vocab_size=13, hidden_size=16, cond_dim=8, n_blocks=2, n_heads=2, time_conditioning=False
)


def trained_looking(config: ModelConfig) -> DiT:
    """A model none of whose parameters is zero any more."""
    torch.manual_seed(0)
    model = DiT(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def test_untrained_model_finds_every_token_equally_likely() -> None:
    logits = DiT(CONFIG)(torch.randint(13, (3, 7)), torch.rand(3))
    assert logits.shape == (3, 7, 13)
    assert (logits == 0).all()


def test_parameters_have_the_names_of_the_published_backbone() -> None:
    block = r"blocks\.[01]\.(norm[12]\.weight|attn_(qkv|out)\.weight|mlp\.[02]\.(weight|bias)"
    rest = (
        r"vocab_embed\.embedding|sigma_map\.mlp\.[02]\.(weight|bias)|rotary_emb\.inv_freq"
        r"|output_layer\.(norm_final\.weight|(linear|adaLN_modulation)\.(weight|bias))"
    )
    names = list(DiT(CONFIG).state_dict())
    pattern = re.compile(rf"({block}|adaLN_modulation\.(weight|bias))|{rest})$")
    assert [name for name in names if not pattern.match(name)] == []
    assert len(names) == 2 * 10 + 5 + 1 + 5
    assert DiT(CONFIG).vocab_embed.embedding.shape == (13, 16)


def test_every_position_sees_the_whole_sequence_and_its_order() -> None:
    model = trained_looking(CONFIG)
    tokens = torch.arange(6)[None] + 3
    changed = tokens.clone()
    changed[0, 5] = 12
    swapped = tokens[:, [1, 0, 2, 3, 4, 5]]
    sigma = torch.zeros(1)
    first = model(tokens, sigma)[0, 2]
    assert not torch.allclose(first, model(changed, sigma)[0, 2])
    assert not torch.allclose(first, model(swapped, sigma)[0, 2])


def test_rotation_depends_on_distance_alone() -> None:
    rotation = Rotary(8)(10)
    query, key = torch.randn(8).expand(1, 1, 10, 8), torch.randn(8).expand(1, 1, 10, 8)
    scores = (rotate(query, rotation) @ rotate(key, rotation).transpose(-1, -2))[0, 0]
    torch.testing.assert_close(scores[0, 3], scores[5, 8])
    assert not torch.allclose(scores[0, 3], scores[0, 4])


def test_noise_level_matters_only_with_time_conditioning() -> None:
    tokens = torch.randint(13, (1, 5))
    low, high = torch.zeros(1), torch.ones(1)
    blind = trained_looking(CONFIG)
    assert torch.equal(blind(tokens, low), blind(tokens, high))
    seeing = trained_looking(ModelConfig(13, 16, 8, 2, 2, time_conditioning=True))
    assert not torch.allclose(seeing(tokens, low), seeing(tokens, high))
