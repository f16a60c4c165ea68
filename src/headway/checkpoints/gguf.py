"""GGUF files, through the `gguf` package: metadata to a config, quantised tensors to plain ones, names to Hugging Face's.

Conventions undone here: llama.cpp stores Llama's q and k rows in interleaved order, and Gemma's norm weights plus one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headway.checkpoints.gguf_reader import Reader, StoredTensor
from headway.checkpoints.gguf_rope import rope_scaling
from headway.errors import CheckpointError

LAYER = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip
FUSED = {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"}
AROUND = {"post_attention_norm": "post_attention_layernorm", "ffn_norm": "pre_feedforward_layernorm",
          "post_ffw_norm": "post_feedforward_layernorm"}  # fmt: skip
NORMED = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}


@dataclass(frozen=True)
class Architecture:
    """How one GGUF architecture maps to a family. layer: names within a block.

    interleaved: q and k rows pair neighbours. unit_offset: norm weights have one added. large: see `config`.
    """

    model_type: str
    model_class: str
    layer: dict[str, str] = field(default_factory=lambda: LAYER)
    interleaved: bool = False
    unit_offset: bool = False
    large: int = 0


ARCHITECTURES = {
    "llama": Architecture("llama", "LlamaForCausalLM", interleaved=True),
    "phi3": Architecture("phi3", "Phi3ForCausalLM", {**LAYER, **FUSED}),
    "gemma": Architecture("gemma", "GemmaForCausalLM", unit_offset=True),
    "gemma2": Architecture("gemma2", "Gemma2ForCausalLM", {**LAYER, **AROUND}, unit_offset=True, large=46),
    "gemma3": Architecture("gemma3_text", "Gemma3ForCausalLM", {**LAYER, **AROUND, **NORMED}, unit_offset=True, large=62),
}

FIELDS = {
    "block_count": "num_hidden_layers", "context_length": "max_position_embeddings", "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size", "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads", "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps", "rope.freq_base": "rope_theta",
    "attention.sliding_window": "sliding_window", "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping", "vocab_size": "vocab_size",
    "rope.scaling.original_context_length": "original_max_position_embeddings",
}  # fmt: skip


class GGUFFile:
    """An opened file. Raises CheckpointError if the package is missing, or the file damaged or of an unknown kind."""

    def __init__(self, path: Path):
        try:
            import gguf
        except ImportError:
            raise CheckpointError("reading GGUF files needs the gguf package: pip install 'headway[gguf]'") from None
        self.path = path
        self.dequantize = gguf.dequantize
        try:
            self.reader = Reader(path)
        except (ValueError, OSError) as error:
            raise CheckpointError(f"{path}: cannot be read as GGUF; it may be cut short or damaged ({error})") from None
        name = self.value("general.architecture")
        if name not in ARCHITECTURES:
            raise CheckpointError(f"{path}: unknown GGUF architecture {name!r}; known: {', '.join(ARCHITECTURES)}")
        self.name, self.arch = name, ARCHITECTURES[name]

    def value(self, key: str, default: Any = None) -> Any:
        return self.reader.values.get(key, default)

    def config(self) -> dict[str, Any]:
        """What the file's metadata says, as a config.json."""
        out: dict[str, Any] = {"model_type": self.arch.model_type, "architectures": [self.arch.model_class]}
        for key, ours in FIELDS.items():
            found = self.value(f"{self.name}.{key}")
            if found is not None:
                out[ours] = float(f"{found:.6g}") if isinstance(found, float) else found
        for kind in ("bos", "eos"):
            found = self.value(f"tokenizer.ggml.{kind}_token_id")
            if found is not None:
                out[f"{kind}_token_id"] = found
        out["pad_token_id"] = self.value(
            "tokenizer.ggml.padding_token_id"
        )  # no family's default: it may lie past the vocabulary
        names = {t.name for t in self.reader.tensors}
        out["tie_word_embeddings"] = "output.weight" not in names
        embeddings = next((t for t in self.reader.tensors if t.name == "token_embd.weight"), None)
        if embeddings is not None:
            out["vocab_size"] = embeddings.shape[0]
        needed = [k for k in ("num_hidden_layers", "hidden_size", "num_attention_heads") if k not in out]
        if needed:
            raise CheckpointError(f"{self.path}: its metadata gives no {', '.join(needed)}")
        turned = self.value(f"{self.name}.rope.dimension_count")
        width = out.get("head_dim") or out["hidden_size"] // out["num_attention_heads"]
        if self.arch.model_type == "phi3" and turned and turned != width:
            out["partial_rotary_factor"] = turned / width
        if self.arch.model_type in ("gemma2", "gemma3_text"):
            large = out["num_hidden_layers"] == self.arch.large  # the one size that scales queries by another width
            out["query_pre_attn_scalar"] = out["hidden_size"] // out["num_attention_heads"] if large else width
        if "blk.0.attn_q.bias" in names:
            out["attention_bias"] = True
        tables = {t.name: self.plain(t) for t in self.reader.tensors if t.name.startswith("rope_")}
        scaling = rope_scaling(lambda key: self.value(f"{self.name}.{key}"), tables, out)
        if scaling is not None:
            out["rope_scaling"] = scaling
        return out

    def plain(self, tensor: StoredTensor) -> np.ndarray:
        """A tensor's values in float32."""
        try:
            return np.array(self.dequantize(tensor.data, tensor.kind), dtype=np.float32).reshape(tensor.shape)
        except Exception as error:
            raise CheckpointError(f"{self.path}: tensor {tensor.name} cannot be dequantised ({error})") from None

    def tensors(self) -> dict[str, Tensor]:
        """All weights in float32 under Hugging Face's names."""
        config = self.config()
        out = {}
        for tensor in self.reader.tensors:
            name = self.translated(tensor.name)
            if name is None:
                continue
            value = torch.from_numpy(self.plain(tensor))
            if self.arch.interleaved and ".attn_q." in tensor.name:
                value = halves(value, config["num_attention_heads"])
            elif self.arch.interleaved and ".attn_k." in tensor.name:
                value = halves(value, config.get("num_key_value_heads", config["num_attention_heads"]))
            if self.arch.unit_offset and name.endswith("norm.weight"):
                value = value - 1
            out[name] = value
        return out

    def translated(self, name: str) -> str | None:
        """Hugging Face's name of a tensor, None for tables that are recomputed."""
        top = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight",
               "output.weight": "lm_head.weight"}  # fmt: skip
        if name in top:
            return top[name]
        if name.startswith("rope_"):
            return None
        parts = name.split(".")
        if len(parts) == 4 and parts[0] == "blk" and parts[2] in self.arch.layer:
            return f"model.layers.{parts[1]}.{self.arch.layer[parts[2]]}.{parts[3]}"
        raise CheckpointError(f"{self.path}: unknown tensor {name!r} for GGUF architecture {self.name!r}")


def halves(weight: Tensor, heads: int) -> Tensor:
    """Rows of each head from interleaved order (0, 1 a pair) to half order (0, D/2 a pair)."""
    if heads < 1 or weight.shape[0] % (2 * heads):
        raise CheckpointError(f"{weight.shape[0]} rows of queries or keys do not divide into {heads} heads of pairs")
    return weight.view(heads, -1, 2, *weight.shape[1:]).transpose(1, 2).reshape(weight.shape)
