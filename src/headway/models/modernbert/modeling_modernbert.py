"""ModernBERT (Warner et al. 2024): pre-norm encoder, rotary positions, GeGLU, global attention in every third layer and a
window in the others, all of it on packed tokens.

    x = x + attention(norm(x))          the first layer's attention has no norm: the embeddings are normed already
    x = x + mlp(norm(x))
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from headway.attention import masks
from headway.models.base import PreTrainedModel
from headway.models.entry import Entry, enter
from headway.models.modernbert.configuration_modernbert import ModernBertConfig
from headway.models.outputs import HeadOutput, LMOutput, ModelOutput, SpanOutput
from headway.nn.forward import Forward
from headway.nn.losses import cross_entropy, sequence_loss
from headway.nn.mlp import activation
from headway.nn.pooling import first, mean
from headway.nn.rope import RotaryEmbedding, rotate
from headway.packing import Packed


def layer_norm(config: ModernBertConfig) -> nn.LayerNorm:
    return nn.LayerNorm(config.hidden_size, eps=config.norm_eps, bias=config.norm_bias)


class ModernBertEmbeddings(nn.Module):
    def __init__(self, config: ModernBertConfig):
        super().__init__()
        self.tok_embeddings = nn.Embedding(config.vocab_size, config.hidden_size, padding_idx=config.pad_token_id)
        self.norm = layer_norm(config)
        self.drop = nn.Dropout(config.embedding_dropout)

    def forward(self, entry: Entry) -> Tensor:
        x = self.tok_embeddings(entry.ids).unsqueeze(0) if entry.embeds is None else entry.embeds
        return self.drop(self.norm(x))


class ModernBertMLP(nn.Module):
    """Wo(act(a) * g), a and g the halves of Wi(x)."""

    def __init__(self, config: ModernBertConfig):
        super().__init__()
        self.Wi = nn.Linear(config.hidden_size, 2 * config.intermediate_size, bias=config.mlp_bias)
        self.act = activation(config.hidden_activation)
        self.drop = nn.Dropout(config.mlp_dropout)
        self.Wo = nn.Linear(config.intermediate_size, config.hidden_size, bias=config.mlp_bias)

    def forward(self, x: Tensor) -> Tensor:
        a, g = self.Wi(x).chunk(2, dim=-1)
        if torch.is_grad_enabled() or torch.compiler.is_compiling():
            return self.Wo(self.drop(self.act(a) * g))
        return self.Wo(self.drop(self.act(a).mul_(g)))


class ModernBertAttention(nn.Module):
    def __init__(self, config: ModernBertConfig, layer_idx: int):
        super().__init__()
        self.layer_idx = layer_idx
        self.attention_backend: str | None = None
        self.kind = config.layer_types[layer_idx]
        self.head_dim = config.hidden_size // config.num_attention_heads
        self.dropout = config.attention_dropout
        self.Wqkv = nn.Linear(config.hidden_size, 3 * config.hidden_size, bias=config.attention_bias)
        self.Wo = nn.Linear(config.hidden_size, config.hidden_size, bias=config.attention_bias)
        self.out_drop = nn.Dropout(config.attention_dropout) if config.attention_dropout > 0 else nn.Identity()

    def forward(self, x: Tensor, rope: Any, shared: Forward) -> Tensor:
        qkv = self.Wqkv(x).unflatten(-1, (3, -1, self.head_dim))
        cos, sin = rope[self.kind]
        if torch.is_grad_enabled() or torch.compiler.is_compiling():
            q, k = rotate(qkv[..., 0, :, :], cos, sin), rotate(qkv[..., 1, :, :], cos, sin)
        else:  # both at once
            q, k = rotate(qkv[..., :2, :, :], cos.unsqueeze(1), sin.unsqueeze(1)).unbind(-3)
        dropout = self.dropout if self.training else 0.0
        return self.out_drop(self.Wo(shared.attend(self, q, k, qkv[..., 2, :, :], self.kind, dropout_p=dropout)))


class ModernBertEncoderLayer(nn.Module):
    def __init__(self, config: ModernBertConfig, layer_idx: int):
        super().__init__()
        self.attn_norm = nn.Identity() if layer_idx == 0 else layer_norm(config)
        self.attn = ModernBertAttention(config, layer_idx)
        self.mlp_norm = layer_norm(config)
        self.mlp = ModernBertMLP(config)
        self._compiled = config.compiled_mlp

    def feed_forward(self, x: Tensor) -> Tensor:
        return self.mlp(self.mlp_norm(x))

    def forward(self, x: Tensor, rope: Any, shared: Forward) -> Tensor:
        x = x + self.attn(self.attn_norm(x), rope, shared)
        if self._compiled and not torch.compiler.is_compiling():
            return x + compiled(ModernBertEncoderLayer.feed_forward)(self, x)
        return x + self.feed_forward(x)


_compiled: dict[Any, Any] = {}


def compiled(function):
    """`function` compiled once for all layers and lengths; used only where a config asks for it."""
    if function not in _compiled:
        _compiled[function] = torch.compile(function, dynamic=True)
    return _compiled[function]


class ModernBertPreTrainedModel(PreTrainedModel):
    config_class = ModernBertConfig
    base_model_prefix = "model"

    def init_weights(self, module: nn.Module) -> None:
        """Truncated normal; output projections narrower by the depth, classifiers by the width (as published)."""
        config = self.config
        out = config.initializer_range / math.sqrt(2.0 * config.num_hidden_layers)
        if isinstance(module, ModernBertEmbeddings):
            self._draw(module.tok_embeddings, config.initializer_range)
        elif isinstance(module, ModernBertMLP):
            self._draw(module.Wi, config.initializer_range)
            self._draw(module.Wo, out)
        elif isinstance(module, ModernBertAttention):
            self._draw(module.Wqkv, config.initializer_range)
            self._draw(module.Wo, out)
        elif isinstance(module, ModernBertPredictionHead):
            self._draw(module.dense, out)
        elif isinstance(module, ModernBertForMaskedLM):
            self._draw(module.decoder, out)
        elif hasattr(module, "classifier"):
            self._draw(module.classifier, config.hidden_size**-0.5)

    def _draw(self, module: Any, std: float) -> None:
        if module.weight.is_meta:
            return
        cut = self.config.initializer_cutoff_factor * std
        nn.init.trunc_normal_(module.weight, std=std, a=-cut, b=cut)
        if getattr(module, "bias", None) is not None:
            nn.init.zeros_(module.bias)


class ModernBertModel(ModernBertPreTrainedModel):
    """The encoder without a head."""

    def __init__(self, config: ModernBertConfig):
        super().__init__(config)
        self.embeddings = ModernBertEmbeddings(config)
        self.layers = nn.ModuleList(ModernBertEncoderLayer(config, i) for i in range(config.num_hidden_layers))
        self.final_norm = layer_norm(config)
        head_dim = config.hidden_size // config.num_attention_heads
        self.rotary_emb = nn.ModuleDict(
            {
                kind: RotaryEmbedding(config.rope_parameters[kind], head_dim, config.max_position_embeddings)
                for kind in sorted(set(config.layer_types))
            }
        )
        self.post_init()

    def enter(self, input_ids, attention_mask, position_ids, inputs_embeds, packed, output_attentions=False) -> Entry:
        return enter(
            input_ids,
            attention_mask,
            position_ids,
            inputs_embeds,
            {
                "full_attention": None,
                "sliding_attention": masks.sliding_bidirectional(radius=self.config.local_attention // 2),
            },
            vocab_size=self.config.vocab_size,
            packed=packed,
            output_attentions=output_attentions,
        )

    def run(self, entry: Entry, collect: bool = False) -> tuple[Tensor, list[Tensor] | None]:
        """Packed hidden states (1, T, hidden) after the final norm; with `collect` also those before each layer."""
        x = self.embeddings(entry)
        positions, reach = entry.forward.rope_positions(entry.position_ids), entry.forward.reach()
        rope = {kind: rotary(positions, x.dtype, reach) for kind, rotary in self.rotary_emb.items()}
        collected: list[Tensor] | None = [] if collect else None
        for layer in self.layers:
            if collected is not None:
                collected.append(x)
            x = self.checkpointed(layer, x, rope, entry.forward)
        x = self.final_norm(x)
        if collected is not None:
            collected.append(x)
        return x, collected

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        output_hidden_states: bool = False,
        output_attentions: bool = False,
        packed: Packed | None = None,
    ) -> ModelOutput:
        """input_ids (B, L) or inputs_embeds (B, L, hidden), attention_mask (B, L) 1 = real, or a `Packed` batch."""
        entry = self.enter(input_ids, attention_mask, position_ids, inputs_embeds, packed, output_attentions)
        x, collected = self.run(entry, output_hidden_states)
        return ModelOutput(
            last_hidden_state=entry.out(x), hidden_states=entry.hidden_states(collected), attentions=entry.attentions()
        )


class ModernBertPredictionHead(nn.Module):
    def __init__(self, config: ModernBertConfig):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size, config.classifier_bias)
        self.act = activation(config.classifier_activation)
        self.norm = layer_norm(config)
        self._compiled = config.compiled_mlp

    def predict(self, x: Tensor) -> Tensor:
        return self.norm(self.act(self.dense(x)))

    def forward(self, x: Tensor) -> Tensor:
        if self._compiled and not torch.compiler.is_compiling():
            return compiled(ModernBertPredictionHead.predict)(self, x)
        return self.predict(x)


class ModernBertForMaskedLM(ModernBertPreTrainedModel):
    """Predicts masked tokens; the decoder is tied to the embeddings and has a bias of its own."""

    tied_weights = {"decoder.weight": "model.embeddings.tok_embeddings.weight"}

    def __init__(self, config: ModernBertConfig):
        super().__init__(config)
        self.model = ModernBertModel(config)
        self.head = ModernBertPredictionHead(config)
        self.decoder = nn.Linear(config.hidden_size, config.vocab_size, bias=config.decoder_bias)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        output_hidden_states: bool = False,
        output_attentions: bool = False,
        num_items_in_batch: Tensor | int | None = None,
        packed: Packed | None = None,
    ) -> LMOutput:
        """logits (B, L, vocab), zeros on padding; labels (B, L), -100 ignored.

        With `sparse_prediction` and labels, logits are (n, vocab), those of the n labelled tokens in order.
        """
        entry = self.model.enter(input_ids, attention_mask, position_ids, inputs_embeds, packed, output_attentions)
        x, collected = self.model.run(entry, output_hidden_states)
        labels = entry.pack_labels(labels)
        sparse = labels is not None and self.config.sparse_prediction
        if sparse:
            chosen = labels != self.config.sparse_pred_ignore_index  # type: ignore[operator]
            x, labels = x[:, chosen], labels[chosen]  # type: ignore[index]
        logits = self.decoder(self.head(x))
        loss = None if labels is None else cross_entropy(logits[0], labels, num_items_in_batch)
        return LMOutput(
            logits=logits[0] if sparse else entry.out(logits),
            loss=loss,
            hidden_states=entry.hidden_states(collected),
            attentions=entry.attentions(),
        )


class ModernBertClassifier(ModernBertPreTrainedModel):
    """Backbone, the pretrained prediction head (dense and norm), dropout and a linear classifier."""

    def __init__(self, config: ModernBertConfig, outputs: int | None = None):
        super().__init__(config)
        self.model = ModernBertModel(config)
        self.head = ModernBertPredictionHead(config)
        self.drop = nn.Dropout(config.classifier_dropout or 0.0)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels if outputs is None else outputs)
        self.post_init()

    def classify(self, x: Tensor) -> Tensor:
        return self.classifier(self.drop(self.head(x)))

    def pool(self, entry: Entry, x: Tensor) -> Tensor:
        """(B, hidden): each sequence's first token or the mean of its tokens, as the config says."""
        return (first if self.config.classifier_pooling == "cls" else mean)(x, entry.index.cu_seqlens)


class ModernBertForSequenceClassification(ModernBertClassifier):
    """Classifies by the pooled sequence."""

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        output_hidden_states: bool = False,
        output_attentions: bool = False,
        packed: Packed | None = None,
    ) -> HeadOutput:
        """logits (B, num_labels); labels (B,), or (B, num_labels) floats for several labels at once."""
        entry = self.model.enter(input_ids, attention_mask, position_ids, inputs_embeds, packed, output_attentions)
        x, collected = self.model.run(entry, output_hidden_states)
        logits = self.classify(self.pool(entry, x))
        loss = None if labels is None else sequence_loss(logits, labels, self.config.problem_type, self.config.num_labels)
        return HeadOutput(logits=logits, loss=loss, hidden_states=entry.hidden_states(collected), attentions=entry.attentions())


class ModernBertForMultipleChoice(ModernBertClassifier):
    """Scores each of C choices, (B, C, L), by its pooled sequence."""

    def __init__(self, config: ModernBertConfig):
        super().__init__(config, outputs=1)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        output_hidden_states: bool = False,
        output_attentions: bool = False,
    ) -> HeadOutput:
        """Inputs (B, C, L), inputs_embeds (B, C, L, hidden); logits (B, C), labels (B,)."""
        given = input_ids if input_ids is not None else inputs_embeds
        flat = [None if t is None else t.flatten(0, 1) for t in (input_ids, attention_mask, position_ids, inputs_embeds)]
        ids, real, positions, embeds = flat
        entry = self.model.enter(ids, real, positions, embeds, None, output_attentions)
        x, collected = self.model.run(entry, output_hidden_states)
        logits = self.classify(self.pool(entry, x)).view(-1, given.shape[1])  # type: ignore[union-attr]
        loss = None if labels is None else cross_entropy(logits, labels)
        return HeadOutput(logits=logits, loss=loss, hidden_states=entry.hidden_states(collected), attentions=entry.attentions())


class ModernBertForTokenClassification(ModernBertClassifier):
    """Classifies every token."""

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        output_hidden_states: bool = False,
        output_attentions: bool = False,
        num_items_in_batch: Tensor | int | None = None,
        packed: Packed | None = None,
    ) -> HeadOutput:
        """logits (B, L, num_labels), zeros on padding; labels (B, L), -100 ignored."""
        entry = self.model.enter(input_ids, attention_mask, position_ids, inputs_embeds, packed, output_attentions)
        x, collected = self.model.run(entry, output_hidden_states)
        logits = self.classify(x)
        labels = entry.pack_labels(labels)
        loss = None if labels is None else cross_entropy(logits[0], labels, num_items_in_batch)
        return HeadOutput(
            logits=entry.out(logits), loss=loss, hidden_states=entry.hidden_states(collected), attentions=entry.attentions()
        )


class ModernBertForQuestionAnswering(ModernBertClassifier):
    """Marks the first and last token of an answer."""

    def __init__(self, config: ModernBertConfig):
        super().__init__(config, outputs=2)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
        output_hidden_states: bool = False,
        output_attentions: bool = False,
        packed: Packed | None = None,
    ) -> SpanOutput:
        """start_logits and end_logits (B, L), never highest on padding; positions (B,) count columns of the input."""
        entry = self.model.enter(input_ids, attention_mask, position_ids, inputs_embeds, packed, output_attentions)
        x, collected = self.model.run(entry, output_hidden_states)
        starts, ends, loss = entry.spans(self.classify(x), start_positions, end_positions)
        return SpanOutput(
            start_logits=starts,
            end_logits=ends,
            loss=loss,
            hidden_states=entry.hidden_states(collected),
            attentions=entry.attentions(),
        )
