"""Phi-3 and the Gemma families, written as llama.cpp writes them, against the transformers model that they came from."""

from __future__ import annotations

import gguf
import pytest
import torch
import transformers as hf

from headway import load

BASE = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
WIDE = {**BASE, "head_dim": 16}
PHI3 = hf.Phi3Config(**BASE, tie_word_embeddings=False, sliding_window=16)
GEMMA2 = hf.Gemma2Config(
    **WIDE, query_pre_attn_scalar=16, sliding_window=8, attn_logit_softcapping=50.0, final_logit_softcapping=30.0
)
GEMMA3 = hf.Gemma3TextConfig(**WIDE, query_pre_attn_scalar=16, sliding_window=8)

TOP = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}
BLOCK = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv", "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm", "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.gate_up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip
AROUND = {
    **BLOCK, "post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}  # fmt: skip

HEADS = [("add_key_length", 16), ("add_value_length", 16)]
CAPS = [("add_sliding_window", 8), ("add_attn_logit_softcapping", 50.0), ("add_final_logit_softcapping", 30.0)]
CASES = {
    "phi3": (hf.Phi3ForCausalLM, PHI3, BLOCK, [("add_sliding_window", 16), ("add_rope_dimension_count", 8)]),
    "gemma": (hf.GemmaForCausalLM, hf.GemmaConfig(**WIDE), BLOCK, HEADS),
    "gemma2": (hf.Gemma2ForCausalLM, GEMMA2, AROUND, [*HEADS, *CAPS]),
    "gemma3": (hf.Gemma3ForCausalLM, GEMMA3, AROUND, [*HEADS, ("add_sliding_window", 8), ("add_rope_freq_base", 1e6)]),
}


def _write(path, model, architecture, block, extra):
    out = gguf.GGUFWriter(path, architecture)
    sizes = {"block_count": 2, "context_length": 128, "embedding_length": 32, "feed_forward_length": 48, "head_count": 4,
             "head_count_kv": 2, "layer_norm_rms_eps": model.config.rms_norm_eps}  # fmt: skip
    for name, value in [*((f"add_{k}", v) for k, v in sizes.items()), *extra]:
        getattr(out, name)(value)
    for name, tensor in model.state_dict().items():
        stem, _, kind = name.rpartition(".")
        if name == "lm_head.weight" and model.config.tie_word_embeddings:
            continue
        if stem not in TOP:
            _, _, layer, stem = stem.split(".", 3)
        target = TOP.get(stem) or f"blk.{layer}.{block[stem]}"
        if architecture.startswith("gemma") and stem.endswith("norm"):
            tensor = tensor + 1
        out.add_tensor(f"{target}.{kind}", tensor.numpy())
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


@pytest.mark.parametrize("architecture", CASES)
def test_logits_are_those_of_the_model_that_was_written(architecture, tmp_path):
    peer, config, block, extra = CASES[architecture]
    theirs = peer(config).eval()
    with torch.no_grad():  # norms that are not one, scores that are not all alike
        for p in theirs.parameters():
            p.add_(torch.randn_like(p) / 10) if p.dim() == 1 else p.mul_(8)
    _write(tmp_path / "m.gguf", theirs, architecture, block, extra)
    ours = load(tmp_path / "m.gguf")
    assert type(ours).__name__ == peer.__name__
    ids = torch.randint(4, 64, (1, 40))  # longer than the windows
    with torch.no_grad():
        torch.testing.assert_close(ours(ids).logits, theirs(ids).logits, atol=2e-5, rtol=1e-5)
