"""Gemma (Gemma Team 2024): Llama with scaled embeddings, norms that scale by 1 + weight, and a GELU-gated MLP."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from headway.models.entry import Entry
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
from headway.nn.norms import UnitOffsetRMSNorm


@dataclass(kw_only=True)
class GemmaConfig(LlamaConfig):
    """Fields of a Gemma config.json, with Hugging Face's names and defaults."""

    model_type = "gemma"

    vocab_size: int = 256000
    hidden_size: int = 3072
    intermediate_size: int = 24576
    num_hidden_layers: int = 28
    num_attention_heads: int = 16
    num_key_value_heads: int = 16
    head_dim: int = 256
    hidden_act: str = "gelu_pytorch_tanh"
    max_position_embeddings: int = 8192
    pad_token_id: int | None = 0
    bos_token_id: int | None = 2
    eos_token_id: int | list[int] | None = 1
    tie_word_embeddings: bool = True


class GemmaAttention(LlamaAttention):
    pass


class GemmaDecoderLayer(LlamaDecoderLayer):
    attention_class = GemmaAttention
    norm_class = UnitOffsetRMSNorm


class GemmaPreTrainedModel(LlamaPreTrainedModel):
    config_class = GemmaConfig


class GemmaModel(LlamaModel):
    config_class = GemmaConfig
    layer_class = GemmaDecoderLayer
    norm_class = UnitOffsetRMSNorm

    def embed(self, entry: Entry) -> Tensor:
        """(1, T, hidden), scaled by sqrt(hidden) rounded to the weights' dtype; embeddings given by the caller too."""
        x = self.embed_tokens(entry.ids).unsqueeze(0) if entry.embeds is None else entry.embeds
        return x * x.new_tensor(self.config.hidden_size**0.5)


class GemmaForCausalLM(LlamaForCausalLM):
    config_class = GemmaConfig
    backbone_class = GemmaModel


class GemmaForSequenceClassification(LlamaForSequenceClassification):
    config_class = GemmaConfig
    backbone_class = GemmaModel


class GemmaForTokenClassification(LlamaForTokenClassification):
    config_class = GemmaConfig
    backbone_class = GemmaModel
