"""BERT's configuration."""

from __future__ import annotations

from dataclasses import dataclass

from headway.models.config import Config


@dataclass(kw_only=True)
class BertConfig(Config):
    """Fields of a BERT config.json, with Hugging Face's names and defaults."""

    model_type = "bert"

    vocab_size: int = 30522
    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    layer_norm_eps: float = 1e-12
    pad_token_id: int | None = 0
