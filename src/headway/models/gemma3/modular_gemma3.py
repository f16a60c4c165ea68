"""Gemma 3, text (Gemma Team 2025): Gemma 2 without soft caps, with normed queries and keys, five windowed layers for each
full one, and a rotary base of its own for each of the two kinds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headway.attention import masks
from headway.models.entry import Entry
from headway.models.gemma2.configuration_gemma2 import Gemma2Config
from headway.models.gemma2.modeling_gemma2 import (
    Gemma2Attention,
    Gemma2DecoderLayer,
    Gemma2ForCausalLM,
    Gemma2ForSequenceClassification,
    Gemma2Model,
    Gemma2PreTrainedModel,
)
from headway.nn.norms import UnitOffsetRMSNorm
from headway.nn.rope import RotaryEmbedding, rotate


@dataclass(kw_only=True)
class Gemma3TextConfig(Gemma2Config):
    """Fields of a Gemma 3 text config.json, with Hugging Face's names and defaults."""

    model_type = "gemma3_text"

    vocab_size: int = 262208
    max_position_embeddings: int = 131072
    sliding_window_pattern: int | None = None
    final_logit_softcapping: float | None = None
    attn_logit_softcapping: float | None = None
    use_bidirectional_attention: bool = False

    def __post_init__(self):
        if self.layer_types is None:
            period = self.sliding_window_pattern or 6
            kinds = ("sliding_attention", "full_attention")
            self.layer_types = [kinds[(i + 1) % period == 0] for i in range(self.num_hidden_layers)]
        super().__post_init__()

    @classmethod
    def upgrade(cls, values: dict[str, Any]) -> None:
        """Older configs give rope_theta, rope_local_base_freq and rope_scaling (for full layers only)."""
        rope = {k: dict(v) for k, v in (values.pop("rope_parameters", None) or {}).items() if isinstance(v, dict)}
        full = rope.setdefault("full_attention", dict(values.pop("rope_scaling", None) or {}))
        local = rope.setdefault("sliding_attention", {})
        for one, base in (
            (full, values.pop("rope_theta", None) or 1e6),
            (local, values.pop("rope_local_base_freq", None) or 1e4),
        ):
            one.setdefault("rope_type", one.pop("type", "default"))
            one.setdefault("rope_theta", base)
        values["rope_parameters"] = rope


class Gemma3Attention(Gemma2Attention):
    def __init__(self, config: Gemma3TextConfig, layer_idx: int):
        super().__init__(config, layer_idx)
        self.q_norm = UnitOffsetRMSNorm(config.head_dim, config.rms_norm_eps)
        self.k_norm = UnitOffsetRMSNorm(config.head_dim, config.rms_norm_eps)

    def turn(self, q: Tensor, k: Tensor, rope: Any) -> tuple[Tensor, Tensor]:
        """Norms q and k and rotates them by their positions."""
        cos, sin = rope[self.kind]
        return rotate(self.q_norm(q), cos, sin), rotate(self.k_norm(k), cos, sin)


class Gemma3DecoderLayer(Gemma2DecoderLayer):
    attention_class = Gemma3Attention


class Gemma3PreTrainedModel(Gemma2PreTrainedModel):
    config_class = Gemma3TextConfig


class Gemma3TextModel(Gemma2Model):
    config_class = Gemma3TextConfig
    layer_class = Gemma3DecoderLayer

    def make_rope(self, config: Gemma3TextConfig) -> nn.Module:
        return nn.ModuleDict(
            {
                kind: RotaryEmbedding(config.rope_parameters[kind], config.head_dim, config.max_position_embeddings)
                for kind in sorted(set(config.layer_types))
            }
        )

    def bands(self) -> dict[str, masks.Mask | None]:
        """The mask of each layer kind within a sequence."""
        window = self.config.sliding_window
        if self.config.use_bidirectional_attention:
            return {"full_attention": None, "sliding_attention": masks.sliding_bidirectional(radius=window // 2)}
        return {"full_attention": masks.causal(), "sliding_attention": masks.sliding(total=window)}

    def rope(self, entry: Entry, dtype: torch.dtype) -> Any:
        """cos and sin of the tokens' positions for each layer kind."""
        positions, reach = entry.forward.rope_positions(entry.position_ids), entry.forward.reach()
        return {kind: rotary(positions, dtype, reach) for kind, rotary in self.rotary_emb.items()}


class Gemma3ForCausalLM(Gemma2ForCausalLM):
    config_class = Gemma3TextConfig
    backbone_class = Gemma3TextModel


class Gemma3TextForSequenceClassification(Gemma2ForSequenceClassification):
    config_class = Gemma3TextConfig
    backbone_class = Gemma3TextModel
