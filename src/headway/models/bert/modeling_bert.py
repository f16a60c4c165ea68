"""BERT (Devlin et al. 2019): post-norm encoder with learned positions.

x = norm(x + attention(x))          all of it on packed tokens, (1, T, hidden)
x = norm(x + mlp(x))
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headway.models.base import PreTrainedModel
from headway.models.bert.configuration_bert import BertConfig
from headway.models.entry import Entry, check_positions, check_range, enter
from headway.models.outputs import HeadOutput, LMOutput, ModelOutput, SpanOutput
from headway.nn.forward import Forward
from headway.nn.losses import cross_entropy, sequence_loss
from headway.nn.mlp import activation
from headway.nn.pooling import first
from headway.packing import Packed


class BertEmbeddings(nn.Module):
    """Word + position + token type, normed."""

    def __init__(self, config: BertConfig):
        super().__init__()
        self.word_embeddings = nn.Embedding(config.vocab_size, config.hidden_size, config.pad_token_id)
        self.position_embeddings = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, entry: Entry, positions: Tensor) -> Tensor:
        x = self.word_embeddings(entry.ids).unsqueeze(0) if entry.embeds is None else entry.embeds
        if entry.token_type_ids is None:
            x = x + self.token_type_embeddings.weight[0]
        else:
            kinds = self.token_type_embeddings.num_embeddings
            check_range(entry.token_type_ids, kinds, "token_type_ids", "0 is the first text of a pair, 1 the second")
            x = x + self.token_type_embeddings(entry.token_type_ids)
        check_positions(positions, self.position_embeddings)
        return self.dropout(self.LayerNorm(x + self.position_embeddings(positions)))


class BertSelfAttention(nn.Module):
    def __init__(self, config: BertConfig, layer_idx: int):
        super().__init__()
        self.layer_idx = layer_idx
        self.attention_backend: str | None = None
        self.head_dim = config.hidden_size // config.num_attention_heads
        self.dropout = config.attention_probs_dropout_prob
        self.query = nn.Linear(config.hidden_size, config.hidden_size)
        self.key = nn.Linear(config.hidden_size, config.hidden_size)
        self.value = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, x: Tensor, shared: Forward) -> Tensor:
        q, k, v = (proj(x).unflatten(-1, (-1, self.head_dim)) for proj in (self.query, self.key, self.value))
        return shared.attend(self, q, k, v, "full_attention", dropout_p=self.dropout if self.training else 0.0)


class BertOutput(nn.Module):
    """Linear, dropout, residual, norm: the end of both halves of a layer."""

    def __init__(self, config: BertConfig, width: int):
        super().__init__()
        self.dense = nn.Linear(width, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        x = self.dropout(self.dense(x))
        free = not torch.is_grad_enabled() and x.dtype == residual.dtype  # autocast keeps the residual in fp32
        return self.LayerNorm(x.add_(residual) if free else x + residual)


class BertAttention(nn.Module):
    def __init__(self, config: BertConfig, layer_idx: int):
        super().__init__()
        self.self = BertSelfAttention(config, layer_idx)
        self.output = BertOutput(config, config.hidden_size)

    def forward(self, x: Tensor, shared: Forward) -> Tensor:
        return self.output(self.self(x, shared), x)


class BertIntermediate(nn.Module):
    def __init__(self, config: BertConfig):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.intermediate_size)
        self.act = activation(config.hidden_act)

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.dense(x))


class BertLayer(nn.Module):
    def __init__(self, config: BertConfig, layer_idx: int):
        super().__init__()
        self.attention = BertAttention(config, layer_idx)
        self.intermediate = BertIntermediate(config)
        self.output = BertOutput(config, config.intermediate_size)

    def forward(self, x: Tensor, shared: Forward) -> Tensor:
        x = self.attention(x, shared)
        return self.output(self.intermediate(x), x)


class BertEncoder(nn.Module):
    def __init__(self, config: BertConfig):
        super().__init__()
        self.layer = nn.ModuleList(BertLayer(config, i) for i in range(config.num_hidden_layers))


class BertPooler(nn.Module):
    """tanh(dense(x)) of each sequence's first token."""

    def __init__(self, config: BertConfig):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, first: Tensor) -> Tensor:
        return torch.tanh(self.dense(first))


class BertPreTrainedModel(PreTrainedModel):
    config_class = BertConfig
    base_model_prefix = "bert"


class BertModel(BertPreTrainedModel):
    """The encoder; `add_pooling_layer` adds the pooled first token."""

    def __init__(self, config: BertConfig, add_pooling_layer: bool = True):
        super().__init__(config)
        self.embeddings = BertEmbeddings(config)
        self.encoder = BertEncoder(config)
        self.pooler = BertPooler(config) if add_pooling_layer else None
        self.post_init()

    def enter(
        self, input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, packed, output_attentions=False
    ) -> Entry:
        return enter(
            input_ids,
            attention_mask,
            position_ids,
            inputs_embeds,
            {"full_attention": None},
            vocab_size=self.config.vocab_size,
            token_type_ids=token_type_ids,
            packed=packed,
            output_attentions=output_attentions,
        )

    def run(self, entry: Entry, collect: bool = False) -> tuple[Tensor, list[Tensor] | None]:
        """Packed hidden states (1, T, hidden); with `collect` also the embeddings and each layer's output."""
        positions = entry.index.positions if entry.position_ids is None else entry.position_ids
        x = self.embeddings(entry, positions)
        collected = [x] if collect else None
        for layer in self.encoder.layer:
            x = self.checkpointed(layer, x, entry.forward)
            if collected is not None:
                collected.append(x)
        return x, collected

    def pool(self, entry: Entry, x: Tensor) -> Tensor | None:
        """(B, hidden), or None without a pooling layer."""
        return None if self.pooler is None else self.pooler(first(x, entry.index.cu_seqlens))

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        output_hidden_states: bool = False,
        output_attentions: bool = False,
        packed: Packed | None = None,
    ) -> ModelOutput:
        """input_ids (B, L) or inputs_embeds (B, L, hidden), attention_mask (B, L) 1 = real, or a `Packed` batch."""
        entry = self.enter(input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, packed, output_attentions)
        x, collected = self.run(entry, output_hidden_states)
        return ModelOutput(
            last_hidden_state=entry.out(x),
            pooler_output=self.pool(entry, x),
            hidden_states=entry.hidden_states(collected),
            attentions=entry.attentions(),
        )


class BertPredictionHeadTransform(nn.Module):
    def __init__(self, config: BertConfig):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.act = activation(config.hidden_act)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)

    def forward(self, x: Tensor) -> Tensor:
        return self.LayerNorm(self.act(self.dense(x)))


class BertLMPredictionHead(nn.Module):
    def __init__(self, config: BertConfig):
        super().__init__()
        self.transform = BertPredictionHeadTransform(config)
        self.decoder = nn.Linear(config.hidden_size, config.vocab_size)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.transform(x))


class BertOnlyMLMHead(nn.Module):
    def __init__(self, config: BertConfig):
        super().__init__()
        self.predictions = BertLMPredictionHead(config)

    def forward(self, x: Tensor) -> Tensor:
        return self.predictions(x)


class BertForMaskedLM(BertPreTrainedModel):
    """Predicts masked tokens; the decoder is tied to the word embeddings."""

    tied_weights = {
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    }

    def __init__(self, config: BertConfig):
        super().__init__(config)
        self.bert = BertModel(config, add_pooling_layer=False)
        self.cls = BertOnlyMLMHead(config)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        output_hidden_states: bool = False,
        output_attentions: bool = False,
        num_items_in_batch: Tensor | int | None = None,
        packed: Packed | None = None,
    ) -> LMOutput:
        """logits (B, L, vocab), zeros on padding; labels (B, L), -100 ignored."""
        entry = self.bert.enter(
            input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, packed, output_attentions
        )
        x, collected = self.bert.run(entry, output_hidden_states)
        logits = self.cls(x)
        labels = entry.pack_labels(labels)
        loss = None if labels is None else cross_entropy(logits[0], labels, num_items_in_batch)
        return LMOutput(
            logits=entry.out(logits), loss=loss, hidden_states=entry.hidden_states(collected), attentions=entry.attentions()
        )


def classifier_dropout(config: BertConfig) -> nn.Dropout:
    given = config.classifier_dropout
    return nn.Dropout(config.hidden_dropout_prob if given is None else given)


class BertForSequenceClassification(BertPreTrainedModel):
    """Classifies by the pooled first token."""

    def __init__(self, config: BertConfig):
        super().__init__(config)
        self.bert = BertModel(config)
        self.dropout = classifier_dropout(config)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        output_hidden_states: bool = False,
        output_attentions: bool = False,
        packed: Packed | None = None,
    ) -> HeadOutput:
        """logits (B, num_labels); labels (B,), or (B, num_labels) floats for several labels at once."""
        entry = self.bert.enter(
            input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, packed, output_attentions
        )
        x, collected = self.bert.run(entry, output_hidden_states)
        logits = self.classifier(self.dropout(self.bert.pool(entry, x)))
        loss = None if labels is None else sequence_loss(logits, labels, self.config.problem_type, self.config.num_labels)
        return HeadOutput(logits=logits, loss=loss, hidden_states=entry.hidden_states(collected), attentions=entry.attentions())


class BertForMultipleChoice(BertPreTrainedModel):
    """Scores each of C choices, (B, C, L), by its pooled first token."""

    def __init__(self, config: BertConfig):
        super().__init__(config)
        self.bert = BertModel(config)
        self.dropout = classifier_dropout(config)
        self.classifier = nn.Linear(config.hidden_size, 1)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        output_hidden_states: bool = False,
        output_attentions: bool = False,
    ) -> HeadOutput:
        """Inputs (B, C, L), inputs_embeds (B, C, L, hidden); logits (B, C), labels (B,)."""
        given = input_ids if input_ids is not None else inputs_embeds
        choices = given.shape[1]  # type: ignore[union-attr]

        def flat(t: Tensor | None) -> Tensor | None:
            return None if t is None else t.flatten(0, 1)

        entry = self.bert.enter(
            flat(input_ids), flat(attention_mask), flat(token_type_ids), flat(position_ids), flat(inputs_embeds), None,
            output_attentions,
        )  # fmt: skip
        x, collected = self.bert.run(entry, output_hidden_states)
        logits = self.classifier(self.dropout(self.bert.pool(entry, x))).view(-1, choices)
        loss = None if labels is None else cross_entropy(logits, labels)
        return HeadOutput(logits=logits, loss=loss, hidden_states=entry.hidden_states(collected), attentions=entry.attentions())


class BertForTokenClassification(BertPreTrainedModel):
    """Classifies every token."""

    def __init__(self, config: BertConfig):
        super().__init__(config)
        self.bert = BertModel(config, add_pooling_layer=False)
        self.dropout = classifier_dropout(config)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        output_hidden_states: bool = False,
        output_attentions: bool = False,
        num_items_in_batch: Tensor | int | None = None,
        packed: Packed | None = None,
    ) -> HeadOutput:
        """logits (B, L, num_labels), zeros on padding; labels (B, L), -100 ignored."""
        entry = self.bert.enter(
            input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, packed, output_attentions
        )
        x, collected = self.bert.run(entry, output_hidden_states)
        logits = self.classifier(self.dropout(x))
        labels = entry.pack_labels(labels)
        loss = None if labels is None else cross_entropy(logits[0], labels, num_items_in_batch)
        return HeadOutput(
            logits=entry.out(logits), loss=loss, hidden_states=entry.hidden_states(collected), attentions=entry.attentions()
        )


class BertForQuestionAnswering(BertPreTrainedModel):
    """Marks the first and last token of an answer."""

    def __init__(self, config: BertConfig):
        super().__init__(config)
        self.bert = BertModel(config, add_pooling_layer=False)
        self.qa_outputs = nn.Linear(config.hidden_size, 2)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
        output_hidden_states: bool = False,
        output_attentions: bool = False,
        packed: Packed | None = None,
    ) -> SpanOutput:
        """start_logits and end_logits (B, L), lowest on padding; positions (B,) count columns of the input."""
        entry = self.bert.enter(
            input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, packed, output_attentions
        )
        x, collected = self.bert.run(entry, output_hidden_states)
        starts, ends, loss = entry.spans(self.qa_outputs(x), start_positions, end_positions)
        return SpanOutput(
            start_logits=starts,
            end_logits=ends,
            loss=loss,
            hidden_states=entry.hidden_states(collected),
            attentions=entry.attentions(),
        )
