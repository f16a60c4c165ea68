"""Gemma 2 (Gemma Team 2024): Gemma with soft caps on attention scores and logits, every other layer windowed, and norms
on both sides of attention and MLP."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headway.attention import masks
from headway.models.gemma.configuration_gemma import GemmaConfig
from headway.models.gemma.modeling_gemma import (
    GemmaAttention,
    GemmaDecoderLayer,
    GemmaForCausalLM,
    GemmaForSequenceClassification,
    GemmaForTokenClassification,
    GemmaModel,
    GemmaPreTrainedModel,
)
from headway.nn.forward import Forward
from headway.nn.mlp import GatedMLP
from headway.nn.norms import UnitOffsetRMSNorm


@dataclass(kw_only=True)
class Gemma2Config(GemmaConfig):
    """Fields of a Gemma 2 config.json, with Hugging Face's names and defaults."""

    model_type = "gemma2"

    hidden_size: int = 2304
    intermediate_size: int = 9216
    num_hidden_layers: int = 26
    num_attention_heads: int = 8
    num_key_value_heads: int = 4
    hidden_activation: str = "gelu_pytorch_tanh"
    query_pre_attn_scalar: float = 256
    sliding_window: int = 4096
    layer_types: list[str] | None = None
    final_logit_softcapping: float | None = 30.0
    attn_logit_softcapping: float | None = 50.0

    def __post_init__(self):
        super().__post_init__()
        if self.layer_types is None:
            kinds = ("sliding_attention", "full_attention")
            self.layer_types = [kinds[i % 2] for i in range(self.num_hidden_layers)]


class Gemma2Attention(GemmaAttention):
    def __init__(self, config: Gemma2Config, layer_idx: int):
        super().__init__(config, layer_idx)
        self.kind = config.layer_types[layer_idx]
        self.scale = config.query_pre_attn_scalar**-0.5
        self.softcap = config.attn_logit_softcapping


class Gemma2DecoderLayer(GemmaDecoderLayer):
    attention_class = Gemma2Attention

    def __init__(self, config: Gemma2Config, layer_idx: int):
        super().__init__(config, layer_idx)
        self.pre_feedforward_layernorm = UnitOffsetRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_feedforward_layernorm = UnitOffsetRMSNorm(config.hidden_size, config.rms_norm_eps)

    def make_mlp(self, config: Gemma2Config) -> nn.Module:
        return GatedMLP(config.hidden_size, config.intermediate_size, config.hidden_activation)

    def forward(self, x: Tensor, rope: Any, shared: Forward) -> Tensor:
        x = x + self.post_attention_layernorm(self.self_attn(self.input_layernorm(x), rope, shared))
        return x + self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(x)))


class Gemma2PreTrainedModel(GemmaPreTrainedModel):
    config_class = Gemma2Config


class Gemma2Model(GemmaModel):
    config_class = Gemma2Config
    layer_class = Gemma2DecoderLayer

    def bands(self) -> dict[str, masks.Mask | None]:
        """The mask of each layer kind within a sequence."""
        return {"full_attention": masks.causal(), "sliding_attention": masks.sliding(total=self.config.sliding_window)}


class Gemma2ForCausalLM(GemmaForCausalLM):
    config_class = Gemma2Config
    backbone_class = Gemma2Model

    def logits(self, hidden: Tensor) -> Tensor:
        """(..., hidden) -> (..., vocab), soft-capped."""
        logits, cap = self.lm_head(hidden), self.config.final_logit_softcapping
        return logits if cap is None else cap * torch.tanh(logits / cap)


class Gemma2ForSequenceClassification(GemmaForSequenceClassification):
    config_class = Gemma2Config
    backbone_class = Gemma2Model


class Gemma2ForTokenClassification(GemmaForTokenClassification):
    config_class = Gemma2Config
    backbone_class = Gemma2Model
