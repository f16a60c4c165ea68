"""GPT-2's configuration."""

from __future__ import annotations

from dataclasses import dataclass

from headway.models.config import Config


@dataclass(kw_only=True)
class GPT2Config(Config):
    """Fields of a GPT-2 config.json, with Hugging Face's names and defaults."""

    model_type = "gpt2"
    aliases = {"hidden_size": "n_embd", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head"}

    vocab_size: int = 50257
    n_positions: int = 1024
    n_inner: int | None = None
    activation_function: str = "gelu_new"
    resid_pdrop: float = 0.1
    embd_pdrop: float = 0.1
    attn_pdrop: float = 0.1
    layer_norm_epsilon: float = 1e-5
    scale_attn_weights: bool = True
    scale_attn_by_inverse_layer_idx: bool = False
    reorder_and_upcast_attn: bool = False
    bos_token_id: int | None = 50256
    eos_token_id: int | list[int] | None = 50256

    @property
    def inner(self) -> int:
        return self.n_inner if self.n_inner is not None else 4 * self.hidden_size
