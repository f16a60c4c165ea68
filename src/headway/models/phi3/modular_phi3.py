"""Phi-3 (Abdin et al. 2024): Llama with fused projections, residual dropout, and partial, long-scaled rotary positions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headway.attention import masks
from headway.models.llama.configuration_llama import LlamaConfig
from headway.models.llama.modeling_llama import (
    LlamaAttention,
    LlamaDecoderLayer,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    LlamaForTokenClassification,
    LlamaModel,
    LlamaPreTrainedModel,
)
from headway.nn.forward import Forward
from headway.nn.mlp import activation
from headway.nn.rope import RotaryEmbedding


@dataclass(kw_only=True)
class Phi3Config(LlamaConfig):
    """Fields of a Phi-3 config.json, with Hugging Face's names and defaults."""

    model_type = "phi3"

    vocab_size: int = 32064
    hidden_size: int = 3072
    intermediate_size: int = 8192
    max_position_embeddings: int = 4096
    original_max_position_embeddings: int = 4096
    rms_norm_eps: float = 1e-5
    pad_token_id: int | None = 32000
    eos_token_id: int | list[int] | None = 32000
    resid_pdrop: float = 0.0
    embd_pdrop: float = 0.0
    sliding_window: int | None = None


class Phi3MLP(nn.Module):
    """Gated MLP with gate and up in one projection."""

    def __init__(self, config: Phi3Config):
        super().__init__()
        self.gate_up_proj = nn.Linear(config.hidden_size, 2 * config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)
        self.act = activation(config.hidden_act)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up_proj(x).chunk(2, dim=-1)
        if torch.is_grad_enabled():
            return self.down_proj(self.act(gate) * up)
        return self.down_proj(self.act(gate).mul_(up))


class Phi3Attention(LlamaAttention):
    """Grouped-query attention with one projection for q, k and v."""

    def __init__(self, config: Phi3Config, layer_idx: int):
        super().__init__(config, layer_idx)
        del self.q_proj
        del self.k_proj
        del self.v_proj
        self.sizes = [n * config.head_dim for n in (config.num_attention_heads, *(config.num_key_value_heads,) * 2)]
        self.qkv_proj = nn.Linear(config.hidden_size, sum(self.sizes), bias=False)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x (1, T, hidden) -> q (1, T, Hq, D), k and v (1, T, Hkv, D)."""
        parts = self.qkv_proj(x).split(self.sizes, dim=-1)
        return tuple(t.unflatten(-1, (-1, self.head_dim)) for t in parts)


class Phi3DecoderLayer(LlamaDecoderLayer):
    attention_class = Phi3Attention

    def __init__(self, config: Phi3Config, layer_idx: int):
        super().__init__(config, layer_idx)
        self.resid_attn_dropout = nn.Dropout(config.resid_pdrop)
        self.resid_mlp_dropout = nn.Dropout(config.resid_pdrop)

    def make_mlp(self, config: Phi3Config) -> nn.Module:
        return Phi3MLP(config)

    def forward(self, x: Tensor, rope: Any, shared: Forward) -> Tensor:
        x = x + self.resid_attn_dropout(self.self_attn(self.input_layernorm(x), rope, shared))
        return x + self.resid_mlp_dropout(self.mlp(self.post_attention_layernorm(x)))


class Phi3PreTrainedModel(LlamaPreTrainedModel):
    config_class = Phi3Config


class Phi3Model(LlamaModel):
    config_class = Phi3Config
    layer_class = Phi3DecoderLayer

    def make_rope(self, config: Phi3Config) -> nn.Module:
        turned = int(config.head_dim * config.rope_parameters.get("partial_rotary_factor", 1.0))
        return RotaryEmbedding(config.rope_parameters, turned, config.max_position_embeddings)

    def bands(self) -> dict[str, masks.Mask | None]:
        """The mask of each layer kind within a sequence."""
        window = self.config.sliding_window
        return {"full_attention": masks.causal() if window is None else masks.sliding(total=window)}


class Phi3ForCausalLM(LlamaForCausalLM):
    config_class = Phi3Config
    backbone_class = Phi3Model


class Phi3ForSequenceClassification(LlamaForSequenceClassification):
    config_class = Phi3Config
    backbone_class = Phi3Model


class Phi3ForTokenClassification(LlamaForTokenClassification):
    config_class = Phi3Config
    backbone_class = Phi3Model
