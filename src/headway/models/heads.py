"""The heads that all decoders share. A family names its backbone; everything runs on packed tokens."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from headway.cache import DynamicCache
from headway.models.base import PreTrainedModel
from headway.models.entry import Entry
from headway.models.outputs import HeadOutput, LMOutput, SpanOutput
from headway.nn.losses import cross_entropy, sequence_loss, shifted
from headway.nn.pooling import last
from headway.packing import Packed


class CausalLM(PreTrainedModel):
    """A decoder with a language-model head. Subclasses set `backbone_class`."""

    base_model_prefix = "model"
    tied_weights = {"lm_head.weight": "model.embed_tokens.weight"}
    backbone_class: ClassVar[Any]

    def __init__(self, config):
        super().__init__(config)
        setattr(self, self.base_model_prefix, self.backbone_class(config))
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def logits(self, hidden: Tensor) -> Tensor:
        """(..., hidden) -> (..., vocab)."""
        return self.lm_head(hidden)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: DynamicCache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool = False,
        output_hidden_states: bool = False,
        output_attentions: bool = False,
        logits_to_keep: int = 0,
        num_items_in_batch: Tensor | int | None = None,
        packed: Packed | None = None,
    ) -> LMOutput:
        """input_ids (B, L) or inputs_embeds (B, L, hidden), attention_mask (B, L) 1 = real, or a `Packed` batch.

        labels like input_ids: token t is predicted from those before it in its own sequence; -100 is ignored.
        logits_to_keep = n gives logits of the last n real tokens of each row, (B, n, vocab), 0 = all. past_key_values: a
        cache from `headway.cache`, filled in place. num_items_in_batch divides the summed loss instead of the count of
        this batch's labels.
        """
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache()
        entry = self.backbone.enter(
            input_ids, attention_mask, position_ids, inputs_embeds, packed, past_key_values, output_attentions
        )
        hidden, collected = self.backbone.run(entry, output_hidden_states)
        loss = None
        labels = entry.pack_labels(labels)
        if logits_to_keep:
            logits = self.logits(last_tokens(entry, hidden, logits_to_keep))
        else:
            logits = self.logits(hidden)
        if labels is not None:
            full = logits if not logits_to_keep else self.logits(hidden)
            loss = cross_entropy(full[0], shifted(labels, entry.index.cu_seqlens), num_items_in_batch)
        return LMOutput(
            logits=logits if logits_to_keep else entry.out(logits),
            loss=loss,
            hidden_states=entry.hidden_states(collected),
            attentions=entry.attentions(),
            past_key_values=past_key_values,
        )


def last_tokens(entry: Entry, hidden: Tensor, count: int) -> Tensor:
    """(1, T, hidden) -> (B, count, hidden): the last `count` real tokens of each row, zeros before a shorter row's first."""
    index = entry.index
    if entry.forward.rows_equal and count <= index.length:
        return hidden.view(index.batch, index.length, -1)[:, -count:]
    if hidden.shape[1] == 0:
        return hidden.new_zeros(index.cu_seqlens.shape[0] - 1, count, hidden.shape[2])
    back = torch.arange(count - 1, -1, -1, device=hidden.device)
    at = index.last()[:, None] - back
    inside = at >= index.cu_seqlens[:-1, None]
    return hidden[0][at.clamp(min=0)].where(inside.unsqueeze(-1), 0)


class SequenceClassification(PreTrainedModel):
    """A decoder that classifies by the hidden state of the last real token, on either padding side."""

    base_model_prefix = "model"
    backbone_class: ClassVar[Any]

    def __init__(self, config):
        super().__init__(config)
        setattr(self, self.base_model_prefix, self.backbone_class(config))
        self.score = nn.Linear(config.hidden_size, config.num_labels, bias=False)
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
        packed: Packed | None = None,
    ) -> HeadOutput:
        """logits (B, num_labels). Without an attention mask, trailing (or leading) pad tokens of input_ids are padding."""
        pad = self.config.pad_token_id
        if attention_mask is None and input_ids is not None and pad is not None:
            attention_mask = edge_padding(input_ids, pad)
        entry = self.backbone.enter(input_ids, attention_mask, position_ids, inputs_embeds, packed, None, output_attentions)
        hidden, collected = self.backbone.run(entry, output_hidden_states)
        logits = self.score(last(hidden, entry.index.cu_seqlens))
        loss = None if labels is None else sequence_loss(logits, labels, self.config.problem_type, self.config.num_labels)
        return HeadOutput(logits=logits, loss=loss, hidden_states=entry.hidden_states(collected), attentions=entry.attentions())


def edge_padding(ids: Tensor, pad: int) -> Tensor:
    """(B, L) 0 at pad tokens on either edge, 1 from the first to the last other token; an all-pad row keeps one token."""
    real = (ids != pad).int()
    inside = (real.cumsum(1) > 0) & (real.flip(1).cumsum(1).flip(1) > 0)
    none = ~inside.any(1, keepdim=True)
    first = torch.arange(ids.shape[1], device=ids.device) == 0
    return (inside | (none & first)).long()


class TokenClassification(PreTrainedModel):
    """A decoder that classifies every token."""

    base_model_prefix = "model"
    classifier_name: ClassVar[str] = "score"
    backbone_class: ClassVar[Any]

    def __init__(self, config):
        super().__init__(config)
        setattr(self, self.base_model_prefix, self.backbone_class(config))
        dropout = getattr(config, "classifier_dropout", None)
        if dropout is None:
            dropout = getattr(config, "hidden_dropout", None)
        self.dropout = nn.Dropout(0.1 if dropout is None else dropout)
        setattr(self, self.classifier_name, nn.Linear(config.hidden_size, config.num_labels))
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
    ) -> HeadOutput:
        """logits (B, L, num_labels), zeros on padding; labels (B, L), -100 ignored."""
        entry = self.backbone.enter(input_ids, attention_mask, position_ids, inputs_embeds, packed, None, output_attentions)
        hidden, collected = self.backbone.run(entry, output_hidden_states)
        logits = getattr(self, self.classifier_name)(self.dropout(hidden))
        labels = entry.pack_labels(labels)
        loss = None if labels is None else cross_entropy(logits[0], labels, num_items_in_batch)
        return HeadOutput(
            logits=entry.out(logits), loss=loss, hidden_states=entry.hidden_states(collected), attentions=entry.attentions()
        )


class QuestionAnswering(PreTrainedModel):
    """A decoder that marks the first and last token of an answer. Its backbone is called `transformer`, as published."""

    base_model_prefix = "transformer"
    backbone_class: ClassVar[Any]

    def __init__(self, config):
        super().__init__(config)
        setattr(self, self.base_model_prefix, self.backbone_class(config))
        self.qa_outputs = nn.Linear(config.hidden_size, 2)
        self.post_init()

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
        """start_logits and end_logits (B, L), lowest on padding; positions (B,) count columns of the input."""
        entry = self.backbone.enter(input_ids, attention_mask, position_ids, inputs_embeds, packed, None, output_attentions)
        hidden, collected = self.backbone.run(entry, output_hidden_states)
        starts, ends, loss = entry.spans(self.qa_outputs(hidden), start_positions, end_positions)
        return SpanOutput(
            start_logits=starts,
            end_logits=ends,
            loss=loss,
            hidden_states=entry.hidden_states(collected),
            attentions=entry.attentions(),
        )
