"""Tiny random transformers models and padded batches for the plugin's tests."""

from __future__ import annotations

import torch
import transformers as tf

SMALL = {
    "vocab_size": 99,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
GROUPED = SMALL | {"num_key_value_heads": 2}


def llama(**more):
    return build(tf.LlamaForCausalLM, tf.LlamaConfig(**GROUPED | more))


def gemma2(**more):
    return build(tf.Gemma2ForCausalLM, tf.Gemma2Config(**GROUPED | {"head_dim": 16, "sliding_window": 5} | more))


def mistral(**more):
    return build(tf.MistralForCausalLM, tf.MistralConfig(**GROUPED | {"sliding_window": 5} | more))


def bert(**more):
    return build(tf.BertModel, tf.BertConfig(**SMALL | more))


def modernbert(**more):
    more = {"cls_token_id": 1, "sep_token_id": 2, "local_attention": 6, "num_hidden_layers": 3, **more}
    return build(tf.ModernBertModel, tf.ModernBertConfig(**SMALL | more))


def build(cls, config, seed: int = 0):
    torch.manual_seed(seed)
    return cls(config).eval()


def batch(side: str = "both", length: int = 13, seed: int = 1):
    """Ids and mask (4, length): rows padded on the left, the right, both sides by turns, or nowhere."""
    ids = torch.randint(3, 99, (4, length), generator=torch.Generator().manual_seed(seed))
    mask = torch.ones_like(ids)
    for row, pad in enumerate((0, 3, 7, length - 1)):
        if pad and side != "none":
            left = side == "left" or (side == "both" and row % 2)
            mask[row, slice(0, pad) if left else slice(length - pad, None)] = 0
    return ids * mask, mask


def run(model, implementation: str, ids, mask=None, grad: bool = False, **more):
    """First output at real tokens, and all gradients as one vector."""
    model.set_attn_implementation(implementation)
    model.zero_grad()
    with torch.set_grad_enabled(grad):
        out = model(ids, attention_mask=mask, **more)[0]
        real = out if mask is None else out[mask.bool()]
        if not grad:
            return real, None
        weight = torch.linspace(-1, 1, real.numel()).view_as(real)
        (real * weight).sum().backward()
    return real.detach(), torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
