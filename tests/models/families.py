"""Tiny configurations of every family, for Hugging Face transformers (the oracle) and for us."""
# ruff: noqa: E501

from __future__ import annotations

import torch
import transformers as hf

from headway.models.registry import resolve

SMALL = dict(
    vocab_size=97, hidden_size=32, intermediate_size=64, num_hidden_layers=3, num_attention_heads=4, max_position_embeddings=64,
    pad_token_id=0, attn_implementation="eager",
)  # fmt: skip
KINDS = ["sliding_attention", "full_attention", "sliding_attention"]
GPT2 = dict(vocab_size=97, n_embd=32, n_layer=2, n_head=4, n_positions=64, pad_token_id=0, bos_token_id=1, eos_token_id=2,
            attn_implementation="eager")  # fmt: skip
MODERN = dict(local_attention=4, bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2)

# name -> (prefix of the transformers classes, config maker)
FAMILIES = {
    "llama": ("Llama", lambda **kw: hf.LlamaConfig(**SMALL, num_key_value_heads=2, **kw)),
    "llama-llama3": (
        "Llama",
        lambda **kw: hf.LlamaConfig(**SMALL, rope_parameters=dict(
            rope_type="llama3", rope_theta=1e4, factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0,
            original_max_position_embeddings=16), **kw),
    ),
    "llama-linear": (
        "Llama", lambda **kw: hf.LlamaConfig(**SMALL, rope_parameters=dict(rope_type="linear", rope_theta=1e4, factor=3.0), **kw)
    ),
    "llama-yarn": (
        "Llama",
        lambda **kw: hf.LlamaConfig(**SMALL, rope_parameters=dict(
            rope_type="yarn", rope_theta=1e4, factor=4.0, original_max_position_embeddings=16), **kw),
    ),
    "gemma": ("Gemma", lambda **kw: hf.GemmaConfig(**SMALL, num_key_value_heads=2, head_dim=16, **kw)),
    "gemma2": (
        "Gemma2",
        lambda **kw: hf.Gemma2Config(**SMALL, num_key_value_heads=2, head_dim=16, sliding_window=4, query_pre_attn_scalar=7,
                                     attn_logit_softcapping=1.5, final_logit_softcapping=2.0, **kw),
    ),
    "gemma3": (
        "Gemma3Text",
        lambda **kw: hf.Gemma3TextConfig(**SMALL, num_key_value_heads=2, head_dim=16, sliding_window=4, layer_types=KINDS, **kw),
    ),
    "phi3": ("Phi3", lambda **kw: hf.Phi3Config(**SMALL, num_key_value_heads=2, sliding_window=5, **kw)),
    "phi3-longrope": (
        "Phi3",
        lambda **kw: hf.Phi3Config(**SMALL, original_max_position_embeddings=8, rope_parameters=dict(
            rope_type="longrope", rope_theta=1e4, partial_rotary_factor=0.5, short_factor=[1.0, 2.0], long_factor=[3.0, 4.0]), **kw),
    ),
    "glm": ("Glm", lambda **kw: hf.GlmConfig(**SMALL, num_key_value_heads=2, head_dim=8, **kw)),
    "gpt2": ("GPT2", lambda **kw: hf.GPT2Config(**GPT2, **kw)),
    "gpt2-unscaled": ("GPT2", lambda **kw: hf.GPT2Config(**GPT2, scale_attn_weights=False, **kw)),
    "gpt2-by-layer": (
        "GPT2", lambda **kw: hf.GPT2Config(**GPT2, scale_attn_by_inverse_layer_idx=True, reorder_and_upcast_attn=True, **kw)
    ),
    "bert": ("Bert", lambda **kw: hf.BertConfig(**SMALL, **kw)),
    "modernbert": ("ModernBert", lambda **kw: hf.ModernBertConfig(**SMALL, **MODERN, **kw)),
    "modernbert-mean": (
        "ModernBert",
        lambda **kw: hf.ModernBertConfig(**SMALL, **MODERN, classifier_pooling="mean", classifier_bias=True, mlp_bias=True,
                                         attention_bias=True, norm_bias=True, **kw),
    ),
}  # fmt: skip

CLASSES = {
    "base": "Model",
    "causal-lm": "ForCausalLM",
    "masked-lm": "ForMaskedLM",
    "sequence-classification": "ForSequenceClassification",
    "token-classification": "ForTokenClassification",
    "question-answering": "ForQuestionAnswering",
}
IRREGULAR = {("Gemma3Text", "causal-lm"): "Gemma3ForCausalLM", ("GPT2", "causal-lm"): "GPT2LMHeadModel"}


def pairs():
    """Every (family, task) that both sides have."""
    out = []
    for name, (prefix, make) in FAMILIES.items():
        for task in CLASSES:
            kind = make().model_type
            from headway.models.registry import FAMILIES as OURS

            if task in OURS[kind][2] and hasattr(hf, hf_class(prefix, task)):
                out.append((name, task))
    return out


def hf_class(prefix: str, task: str) -> str:
    return IRREGULAR.get((prefix, task), prefix + CLASSES[task])


def build(name: str, task: str):
    """(transformers model, our model) with the same random weights, in eval mode."""
    torch.manual_seed(0)
    prefix, make = FAMILIES[name]
    theirs = getattr(hf, hf_class(prefix, task))(make(num_labels=2 if task == "question-answering" else 3)).eval()
    raw = theirs.config.to_dict()
    config, model = resolve(raw, task)
    ours = model(config.from_dict(raw)).eval()
    ours.load_state_dict(theirs.state_dict(), strict=True)
    return theirs, ours
