"""ModernBERT's configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headway.errors import CheckpointError
from headway.models.config import Config


@dataclass(kw_only=True)
class ModernBertConfig(Config):
    """Fields of a ModernBERT config.json, with Hugging Face's names and defaults.

    local_attention is the whole window: 128 means 64 tokens to either side. compiled_mlp compiles norm and MLP of each
    layer and the prediction head, only if asked for.
    """

    model_type = "modernbert"

    vocab_size: int = 50368
    intermediate_size: int = 1152
    num_hidden_layers: int = 22
    hidden_activation: str = "gelu"
    max_position_embeddings: int = 8192
    initializer_cutoff_factor: float = 2.0
    norm_eps: float = 1e-5
    norm_bias: bool = False
    pad_token_id: int | None = 50283
    eos_token_id: int | list[int] | None = 50282
    bos_token_id: int | None = 50281
    cls_token_id: int | None = 50281
    sep_token_id: int | None = 50282
    attention_bias: bool = False
    attention_dropout: float = 0.0
    layer_types: list[str] = None  # type: ignore[assignment]
    rope_parameters: dict[str, Any] = None  # type: ignore[assignment]
    local_attention: int = 128
    embedding_dropout: float = 0.0
    mlp_bias: bool = False
    mlp_dropout: float = 0.0
    decoder_bias: bool = True
    classifier_pooling: str = "cls"
    classifier_dropout: float | None = 0.0
    classifier_bias: bool = False
    classifier_activation: str = "gelu"
    sparse_prediction: bool = False
    sparse_pred_ignore_index: int = -100
    compiled_mlp: bool = False

    def __post_init__(self):
        if self.layer_types is None:
            self.layer_types = ["sliding_attention" if i % 3 else "full_attention" for i in range(self.num_hidden_layers)]
        if self.rope_parameters is None:
            self.rope_parameters = {
                "full_attention": {"rope_type": "default", "rope_theta": 160000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            }

    @classmethod
    def upgrade(cls, values: dict[str, Any]) -> None:
        """Older configs give global_attn_every_n_layers, global_rope_theta and local_rope_theta."""
        every = values.pop("global_attn_every_n_layers", None)
        if values.get("layer_types") is None and every is not None:
            kinds = ("full_attention", "sliding_attention")
            values["layer_types"] = [kinds[bool(i % every)] for i in range(values.get("num_hidden_layers", 22))]
        rope = {k: dict(v) for k, v in (values.get("rope_parameters") or {}).items() if isinstance(v, dict)}
        full = values.pop("global_rope_theta", None) or 160000.0
        local = values.pop("local_rope_theta", 10000.0) or full
        for kind, theta in (("full_attention", full), ("sliding_attention", local)):
            one = rope.setdefault(kind, {})
            one.setdefault("rope_type", "default")
            one.setdefault("rope_theta", theta)
        values["rope_parameters"] = rope
        values.pop("reference_compile", None)  # nothing is compiled unless compiled_mlp asks for it

    def validate(self) -> None:
        super().validate()
        if self.classifier_pooling not in ("cls", "mean"):
            raise CheckpointError(f"classifier_pooling must be 'cls' or 'mean', {self.classifier_pooling!r} was given")
        unknown = set(self.layer_types or ()) - {"full_attention", "sliding_attention"}
        if unknown or len(self.layer_types or ()) != self.num_hidden_layers:
            raise CheckpointError(
                f"layer_types must name full_attention or sliding_attention for each of {self.num_hidden_layers} layers, "
                f"{self.layer_types} was given"
            )
