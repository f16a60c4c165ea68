"""GPT-2 (Radford et al. 2019): pre-norm decoder with learned positions.

`scale_attn_weights`, `scale_attn_by_inverse_layer_idx` and `reorder_and_upcast_attn` are the scale and the score
precision of the attention call, so that every backend honours them.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headway.attention import masks
from headway.cache import DynamicCache
from headway.models.base import PreTrainedModel
from headway.models.entry import Entry, check_positions, enter
from headway.models.gpt2.configuration_gpt2 import GPT2Config
from headway.models.heads import CausalLM, QuestionAnswering, SequenceClassification, TokenClassification
from headway.models.outputs import ModelOutput
from headway.nn.forward import Forward
from headway.nn.mlp import activation
from headway.packing import Packed


class Conv1D(nn.Module):
    """A linear layer that stores its weight as (in, out)."""

    def __init__(self, out_features: int, in_features: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(in_features, out_features).normal_(std=0.02))
        self.bias = nn.Parameter(torch.zeros(out_features))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight.t(), self.bias)


class GPT2Attention(nn.Module):
    def __init__(self, config: GPT2Config, layer_idx: int):
        super().__init__()
        self.layer_idx = layer_idx
        self.attention_backend: str | None = None
        self.head_dim = config.hidden_size // config.num_attention_heads
        self.scale = self.head_dim**-0.5 if config.scale_attn_weights else 1.0
        if config.scale_attn_by_inverse_layer_idx:
            self.scale /= layer_idx + 1
        self.dropout = config.attn_pdrop
        self.c_attn = Conv1D(3 * config.hidden_size, config.hidden_size)
        self.c_proj = Conv1D(config.hidden_size, config.hidden_size)
        self.resid_dropout = nn.Dropout(config.resid_pdrop)

    def forward(self, x: Tensor, shared: Forward) -> Tensor:
        q, k, v = (t.unflatten(-1, (-1, self.head_dim)) for t in self.c_attn(x).chunk(3, dim=-1))
        dropout = self.dropout if self.training else 0.0
        out = shared.attend(self, q, k, v, "full_attention", scale=self.scale, dropout_p=dropout)
        return self.resid_dropout(self.c_proj(out))


class GPT2MLP(nn.Module):
    def __init__(self, config: GPT2Config):
        super().__init__()
        self.c_fc = Conv1D(config.inner, config.hidden_size)
        self.c_proj = Conv1D(config.hidden_size, config.inner)
        self.act = activation(config.activation_function)
        self.dropout = nn.Dropout(config.resid_pdrop)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.c_proj(self.act(self.c_fc(x))))


class GPT2Block(nn.Module):
    def __init__(self, config: GPT2Config, layer_idx: int):
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_epsilon)
        self.attn = GPT2Attention(config, layer_idx)
        self.ln_2 = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_epsilon)
        self.mlp = GPT2MLP(config)

    def forward(self, x: Tensor, shared: Forward) -> Tensor:
        x = x + self.attn(self.ln_1(x), shared)
        return x + self.mlp(self.ln_2(x))


class GPT2PreTrainedModel(PreTrainedModel):
    config_class = GPT2Config
    base_model_prefix = "transformer"


class GPT2Model(GPT2PreTrainedModel):
    """The decoder without a head."""

    def __init__(self, config: GPT2Config):
        super().__init__(config)
        self.wte = nn.Embedding(config.vocab_size, config.hidden_size)
        self.wpe = nn.Embedding(config.n_positions, config.hidden_size)
        self.drop = nn.Dropout(config.embd_pdrop)
        self.h = nn.ModuleList(GPT2Block(config, i) for i in range(config.num_hidden_layers))
        self.ln_f = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_epsilon)
        self.post_init()

    def enter(self, input_ids, attention_mask, position_ids, inputs_embeds, packed, cache, output_attentions=False) -> Entry:
        return enter(
            input_ids,
            attention_mask,
            position_ids,
            inputs_embeds,
            {"full_attention": masks.causal()},
            vocab_size=self.config.vocab_size,
            packed=packed,
            cache=cache,
            output_attentions=output_attentions,
        )

    def run(self, entry: Entry, collect: bool = False) -> tuple[Tensor, list[Tensor] | None]:
        """Packed hidden states (1, T, hidden) after the final norm; with `collect` also those before each layer."""
        x = self.wte(entry.ids).unsqueeze(0) if entry.embeds is None else entry.embeds
        positions = entry.forward.rope_positions(entry.position_ids)
        check_positions(positions, self.wpe)
        x = self.drop(x + self.wpe(positions))
        collected: list[Tensor] | None = [] if collect else None
        for block in self.h:
            if collected is not None:
                collected.append(x)
            x = self.checkpointed(block, x, entry.forward)
        x = self.ln_f(x)
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


class GPT2LMHeadModel(CausalLM):
    config_class = GPT2Config
    base_model_prefix = "transformer"
    tied_weights = {"lm_head.weight": "transformer.wte.weight"}
    backbone_class = GPT2Model


class GPT2ForSequenceClassification(SequenceClassification):
    config_class = GPT2Config
    base_model_prefix = "transformer"
    backbone_class = GPT2Model


class GPT2ForTokenClassification(TokenClassification):
    config_class = GPT2Config
    base_model_prefix = "transformer"
    classifier_name = "classifier"
    backbone_class = GPT2Model


class GPT2ForQuestionAnswering(QuestionAnswering):
    config_class = GPT2Config
    backbone_class = GPT2Model
