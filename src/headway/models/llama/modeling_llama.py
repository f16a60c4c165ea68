"""Llama (Touvron et al. 2023): pre-norm decoder with RMSNorm, rotary positions, grouped queries and a gated MLP.

x = x + attention(norm(x))          all of it on packed tokens, (1, T, hidden)
x = x + mlp(norm(x))
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from headway.attention import masks
from headway.cache import DynamicCache
from headway.models.base import PreTrainedModel
from headway.models.entry import Entry, enter
from headway.models.heads import CausalLM, QuestionAnswering, SequenceClassification, TokenClassification
from headway.models.llama.configuration_llama import LlamaConfig
from headway.models.outputs import ModelOutput
from headway.nn.forward import Forward
from headway.nn.mlp import GatedMLP
from headway.nn.norms import RMSNorm
from headway.nn.rope import RotaryEmbedding, rotate
from headway.packing import Packed


class LlamaAttention(nn.Module):
    """Grouped-query attention with rotary positions."""

    def __init__(self, config: LlamaConfig, layer_idx: int):
        super().__init__()
        self.layer_idx = layer_idx
        self.attention_backend: str | None = None
        self.head_dim = config.head_dim
        self.kind = "full_attention"
        self.scale = config.head_dim**-0.5
        self.softcap: float | None = None
        self.dropout = config.attention_dropout
        heads, kv_heads, bias = config.num_attention_heads, config.num_key_value_heads, config.attention_bias
        self.q_proj = nn.Linear(config.hidden_size, heads * config.head_dim, bias=bias)
        self.k_proj = nn.Linear(config.hidden_size, kv_heads * config.head_dim, bias=bias)
        self.v_proj = nn.Linear(config.hidden_size, kv_heads * config.head_dim, bias=bias)
        self.o_proj = nn.Linear(heads * config.head_dim, config.hidden_size, bias=bias)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x (1, T, hidden) -> q (1, T, Hq, D), k and v (1, T, Hkv, D)."""
        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        return tuple(t.unflatten(-1, (-1, self.head_dim)) for t in (q, k, v))

    def turn(self, q: Tensor, k: Tensor, rope: Any) -> tuple[Tensor, Tensor]:
        """Rotates q and k by their positions."""
        cos, sin = rope
        return rotate(q, cos, sin), rotate(k, cos, sin)

    def forward(self, x: Tensor, rope: Any, shared: Forward) -> Tensor:
        q, k, v = self.project(x)
        q, k = self.turn(q, k, rope)
        dropout = self.dropout if self.training else 0.0
        out = shared.attend(self, q, k, v, self.kind, scale=self.scale, softcap=self.softcap, dropout_p=dropout)
        return self.o_proj(out)


class LlamaDecoderLayer(nn.Module):
    """Attention and MLP, each behind a norm and a residual."""

    attention_class: Any = LlamaAttention
    norm_class: Any = RMSNorm

    def __init__(self, config: LlamaConfig, layer_idx: int):
        super().__init__()
        self.self_attn = self.attention_class(config, layer_idx)
        self.mlp = self.make_mlp(config)
        self.input_layernorm = self.norm_class(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = self.norm_class(config.hidden_size, config.rms_norm_eps)

    def make_mlp(self, config: LlamaConfig) -> nn.Module:
        return GatedMLP(config.hidden_size, config.intermediate_size, config.hidden_act, config.mlp_bias)

    def forward(self, x: Tensor, rope: Any, shared: Forward) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), rope, shared)
        return x + self.mlp(self.post_attention_layernorm(x))


class LlamaPreTrainedModel(PreTrainedModel):
    config_class = LlamaConfig
    base_model_prefix = "model"


class LlamaModel(LlamaPreTrainedModel):
    """The decoder without a head."""

    layer_class: Any = LlamaDecoderLayer
    norm_class: Any = RMSNorm

    def __init__(self, config: LlamaConfig):
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size, config.pad_token_id)
        self.layers = nn.ModuleList(self.layer_class(config, i) for i in range(config.num_hidden_layers))
        self.norm = self.norm_class(config.hidden_size, config.rms_norm_eps)
        self.rotary_emb = self.make_rope(config)
        self.post_init()

    def make_rope(self, config: LlamaConfig) -> nn.Module:
        return RotaryEmbedding(config.rope_parameters, config.head_dim, config.max_position_embeddings)

    def bands(self) -> dict[str, masks.Mask | None]:
        """The mask of each layer kind within a sequence."""
        return {"full_attention": masks.causal()}

    def enter(self, input_ids, attention_mask, position_ids, inputs_embeds, packed, cache, output_attentions=False) -> Entry:
        return enter(
            input_ids,
            attention_mask,
            position_ids,
            inputs_embeds,
            self.bands(),
            vocab_size=self.config.vocab_size,
            packed=packed,
            cache=cache,
            output_attentions=output_attentions,
        )

    def embed(self, entry: Entry) -> Tensor:
        """(1, T, hidden)."""
        return self.embed_tokens(entry.ids).unsqueeze(0) if entry.embeds is None else entry.embeds

    def rope(self, entry: Entry, dtype: torch.dtype) -> Any:
        """cos and sin of the tokens' positions, shared by all layers."""
        shared = entry.forward
        self.refuse_stale(shared.step)
        return self.rotary_emb(shared.rope_positions(entry.position_ids), dtype, shared.reach())

    def run(self, entry: Entry, collect: bool = False) -> tuple[Tensor, list[Tensor] | None]:
        """Packed hidden states (1, T, hidden) after the final norm; with `collect` also those before each layer."""
        x = self.embed(entry)
        rope = self.rope(entry, x.dtype)
        collected: list[Tensor] | None = [] if collect else None
        for layer in self.layers:
            if collected is not None:
                collected.append(x)
            x = self.checkpointed(layer, x, rope, entry.forward)
        x = self.norm(x)
        if collected is not None:
            collected.append(x)
        return x, collected

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: DynamicCache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool = False,
        output_hidden_states: bool = False,
        output_attentions: bool = False,
        packed: Packed | None = None,
    ) -> ModelOutput:
        """input_ids (B, L) or inputs_embeds (B, L, hidden), attention_mask (B, L) 1 = real, or a `Packed` batch."""
        cache = DynamicCache() if use_cache and past_key_values is None else past_key_values
        entry = self.enter(input_ids, attention_mask, position_ids, inputs_embeds, packed, cache, output_attentions)
        x, collected = self.run(entry, output_hidden_states)
        return ModelOutput(
            last_hidden_state=entry.out(x),
            hidden_states=entry.hidden_states(collected),
            attentions=entry.attentions(),
            past_key_values=cache,
        )


class LlamaForCausalLM(CausalLM):
    config_class = LlamaConfig
    backbone_class = LlamaModel


class LlamaForSequenceClassification(SequenceClassification):
    config_class = LlamaConfig
    backbone_class = LlamaModel


class LlamaForTokenClassification(TokenClassification):
    config_class = LlamaConfig
    backbone_class = LlamaModel


class LlamaForQuestionAnswering(QuestionAnswering):
    config_class = LlamaConfig
    backbone_class = LlamaModel
