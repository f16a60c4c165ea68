"""GGUF files written here with the conventions of llama.cpp, so that every one that is undone shows."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch
import transformers

from headway import load
from headway.errors import CheckpointError

CONFIG = transformers.LlamaConfig(
    vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    max_position_embeddings=128, tie_word_embeddings=False, rope_theta=10000.0,
)  # fmt: skip
NAMES = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip
TOP = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


def _write(path, model, architecture="llama", extra=(), tables=None):
    c, out = model.config, gguf.GGUFWriter(path, architecture)
    out.add_block_count(c.num_hidden_layers)
    out.add_context_length(c.max_position_embeddings)
    out.add_embedding_length(c.hidden_size)
    out.add_feed_forward_length(c.intermediate_size)
    out.add_head_count(c.num_attention_heads)
    out.add_head_count_kv(c.num_key_value_heads)
    out.add_layer_norm_rms_eps(c.rms_norm_eps)
    for call, value in extra:
        getattr(out, call)(value)
    for name, tensor in model.state_dict().items():
        if name in TOP:
            target = TOP[name]
        else:
            _, _, layer, *rest = name.split(".")
            target = f"blk.{layer}.{NAMES['.'.join(rest[:-1])]}.weight"
        for ending, heads in (("q_proj.weight", c.num_attention_heads), ("k_proj.weight", c.num_key_value_heads)):
            if name.endswith(ending):  # halves of each head become neighbours
                tensor = tensor.view(heads, 2, -1, tensor.shape[1]).transpose(1, 2).reshape(tensor.shape)
        out.add_tensor(target, tensor.numpy())
    for name, table in (tables or {}).items():
        out.add_tensor(name, table.astype(np.float32))
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def test_llama_rows_are_put_back(tmp_path):
    theirs = transformers.LlamaForCausalLM(CONFIG).eval()
    _write(tmp_path / "m.gguf", theirs)
    ours = load(tmp_path / "m.gguf")
    assert all(torch.equal(t, theirs.state_dict()[n]) for n, t in ours.state_dict().items())
    ids = torch.randint(0, 64, (2, 9))
    with torch.no_grad():
        torch.testing.assert_close(ours(ids).logits, theirs(ids).logits, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_llama3_scaling_is_recovered_from_its_table(factor, tmp_path):
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    rope = {"rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192, "rope_theta": 500000.0}  # fmt: skip
    config = transformers.LlamaConfig(**{**CONFIG.to_dict(), "head_dim": 128, "rope_parameters": rope})
    theirs = transformers.LlamaForCausalLM(config).eval()
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    table = (1 / 500000.0 ** (torch.arange(64) / 64)) / scaled
    extra = [("add_rope_freq_base", 500000.0), ("add_key_length", 128)]
    _write(tmp_path / "m.gguf", theirs, extra=extra, tables={"rope_freqs.weight": table.numpy()})
    ours = load(tmp_path / "m.gguf")
    ids = torch.randint(0, 64, (1, 100))
    with torch.no_grad():
        torch.testing.assert_close(ours(ids).logits, theirs(ids).logits, atol=1e-5, rtol=1e-5)
    _write(tmp_path / "odd.gguf", theirs, extra=extra, tables={"rope_freqs.weight": np.linspace(1, 3, 64)})
    with pytest.raises(CheckpointError, match="rope_freqs"):
        load(tmp_path / "odd.gguf")


def test_what_is_not_known_is_refused_by_name(tmp_path):
    theirs = transformers.LlamaForCausalLM(CONFIG)
    _write(tmp_path / "a.gguf", theirs, architecture="mamba")
    with pytest.raises(CheckpointError, match="architecture 'mamba'.*llama"):
        load(tmp_path / "a.gguf")
    _write(tmp_path / "b.gguf", theirs, tables={"blk.0.ffn_gate_exps.weight": np.zeros((2, 32))})
    with pytest.raises(CheckpointError, match="ffn_gate_exps"):
        load(tmp_path / "b.gguf")
    (tmp_path / "c.gguf").write_bytes(b"PK\x03\x04 no gguf at all")
    with pytest.raises(CheckpointError, match="begin with 'GGUF'"):
        load(tmp_path / "c.gguf")
