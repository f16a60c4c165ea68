"""BERT's configuration."""

from __future__ import annotations

from dataclasses import dataclass

from headway.errors import CheckpointError
from headway.models.config import Config

# what a config.json may ask for and this encoder does not do; other values would change the numbers unseen
_ONLY = {"is_decoder": False, "add_cross_attention": False, "position_embedding_type": "absolute"}


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

    def validate(self) -> None:
        super().validate()
        for name, only in _ONLY.items():
            given = self.extra.get(name, only)
            if given not in (only, None):
                raise CheckpointError(f"{name} {given!r} is not supported by BERT in Headway; {name} must be {only!r}")
