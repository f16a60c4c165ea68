"""GLM-4 (Team GLM 2024): Llama's attention with interleaved rotary positions on half of each head, Phi-3's MLP."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from headway.models.config import upgrade_rope
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
from headway.models.phi3.modeling_phi3 import Phi3MLP
from headway.nn.rope import RotaryEmbedding, rotate


@dataclass(kw_only=True)
class GlmConfig(LlamaConfig):
    """Fields of a GLM config.json, with Hugging Face's names and defaults."""

    model_type = "glm"

    vocab_size: int = 151552
    intermediate_size: int = 13696
    num_hidden_layers: int = 40
    num_key_value_heads: int = 2
    head_dim: int = 128
    max_position_embeddings: int = 131072
    rms_norm_eps: float = 1.5625e-07
    pad_token_id: int | None = 151329
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    attention_bias: bool = True

    @classmethod
    def upgrade(cls, values: dict[str, Any]) -> None:
        """Without a partial rotary factor half of each head is turned."""
        upgrade_rope(values)
        values["rope_parameters"].setdefault("partial_rotary_factor", 0.5)


class GlmMLP(Phi3MLP):
    pass


class GlmAttention(LlamaAttention):
    def __init__(self, config: GlmConfig, layer_idx: int):
        super().__init__(config, layer_idx)
        self.o_proj = nn.Linear(config.num_attention_heads * config.head_dim, config.hidden_size, bias=False)

    def turn(self, q: Tensor, k: Tensor, rope: Any) -> tuple[Tensor, Tensor]:
        """Rotates neighbouring features of q and k by their positions."""
        cos, sin = rope
        return rotate(q, cos, sin, interleaved=True), rotate(k, cos, sin, interleaved=True)


class GlmDecoderLayer(LlamaDecoderLayer):
    attention_class = GlmAttention

    def make_mlp(self, config: GlmConfig) -> nn.Module:
        return GlmMLP(config)


class GlmPreTrainedModel(LlamaPreTrainedModel):
    config_class = GlmConfig


class GlmModel(LlamaModel):
    config_class = GlmConfig
    layer_class = GlmDecoderLayer

    def make_rope(self, config: GlmConfig) -> nn.Module:
        turned = int(config.head_dim * config.rope_parameters["partial_rotary_factor"])
        return RotaryEmbedding(config.rope_parameters, turned, config.max_position_embeddings)


class GlmForCausalLM(LlamaForCausalLM):
    config_class = GlmConfig
    backbone_class = GlmModel


class GlmForSequenceClassification(LlamaForSequenceClassification):
    config_class = GlmConfig
    backbone_class = GlmModel


class GlmForTokenClassification(LlamaForTokenClassification):
    config_class = GlmConfig
    backbone_class = GlmModel
