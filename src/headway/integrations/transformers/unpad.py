"""transformers' encoders without work on padding: packed once at the entry, unpacked once at the exit."""

from __future__ import annotations

from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from headway.integrations.transformers import mpnet
from headway.integrations.transformers.packing import within
from headway.packing import PackIndex, pack

ENCODERS = frozenset(
    {
        "bert", "roberta", "xlm-roberta", "xlm-roberta-xl", "camembert", "distilbert", "electra", "modernbert", "ernie",
        "data2vec-text", "roberta-prelayernorm", "nomic_bert", "eurobert", "mpnet", "bert-generation",
    }
)  # fmt: skip


def unpad(model: nn.Module) -> nn.Module:
    """From now on, the encoder of `model` computes on real tokens only; the same model is returned.

    model: an encoder of transformers (`ENCODERS`) or one with a head on it. Outputs at real tokens, and everything made from
    them, are unchanged, gradients included; outputs at padding are 0. Its attention becomes "headway" if it is another's.
    Applying it twice changes nothing. Raises ValueError for a model it does not know, or a decoder; in a call, for arguments
    that have no packed form (4-D masks, output_attentions).
    """
    from headway.integrations.transformers.register import register

    encoder: Any = getattr(model, "base_model", model)
    kind = getattr(getattr(encoder, "config", None), "model_type", type(model).__name__)
    if kind not in ENCODERS:
        raise ValueError(f"unpad does not know {kind!r}; it knows {', '.join(sorted(ENCODERS))}")
    if getattr(encoder.config, "is_decoder", False):
        raise ValueError(f"unpad is for encoders; this {kind} is a decoder")
    if isinstance(encoder.__dict__.get("forward"), Unpadded):
        return model
    if kind == "mpnet":
        mpnet.adapt(encoder)
    elif not encoder.config._attn_implementation.startswith("headway"):
        register()
        model.set_attn_implementation("headway")  # type: ignore[operator]
    encoder.forward = Unpadded(encoder)
    return model


class Unpadded:
    """The forward of an encoder, on packed tokens."""

    def __init__(self, encoder):
        self.inner = encoder.forward
        self.encoder = [encoder]  # in a list: a module would otherwise be its own child
        self.parameters = signature(self.inner).parameters
        self.__signature__ = signature(self.inner)

    def __call__(self, *args, **kwargs):
        for name, value in zip(self.parameters, args):
            kwargs[name] = value
        return_dict = kwargs.pop("return_dict", None)
        ids, embeds, mask = kwargs.get("input_ids"), kwargs.get("inputs_embeds"), kwargs.get("attention_mask")
        given = ids if ids is not None else embeds
        if given is None or mask is None:
            out = self.inner(**kwargs)
        else:
            self._check(kwargs)
            batch, length = given.shape[:2]
            index = pack(batch, length, mask, given.device)
            out = self.inner(**kwargs) if index.uniform else self._packed(index, kwargs)
        encoder = self.encoder[0]
        if return_dict is None:
            return_dict = getattr(encoder.config, "return_dict", True)
        return out if return_dict else out.to_tuple()

    def _packed(self, index: PackIndex, kwargs: dict):
        encoder = self.encoder[0]
        kwargs = dict(kwargs)
        ids, embeds = kwargs.get("input_ids"), kwargs.get("inputs_embeds")
        positions = kwargs.get("position_ids")
        if positions is None:
            positions = default_positions(encoder, ids, embeds)
        columns = torch.arange(index.length, device=index.cu_seqlens.device).expand(index.batch, -1)
        kwargs["position_ids"] = index.gather(positions.expand(index.batch, -1))
        kwargs["attention_mask"] = None
        if "token_type_ids" in self.parameters and kwargs.get("token_type_ids") is None:
            kwargs["token_type_ids"] = torch.zeros_like(columns)
        for name in ("input_ids", "inputs_embeds", "token_type_ids"):
            if kwargs.get(name) is not None:
                kwargs[name] = index.gather(kwargs[name])
        slots = index.gather(columns)[0]
        within.index = index
        within.positions = None if in_one_run(index, slots) else slots
        try:
            out = self.inner(**kwargs)
        finally:
            within.index = within.positions = None
        out["last_hidden_state"] = index.scatter(out["last_hidden_state"])
        if out.get("hidden_states") is not None:
            out["hidden_states"] = tuple(index.scatter(h) for h in out["hidden_states"])
        if out.get("pooler_output") is not None:  # the pooler reads each row's first column
            out["pooler_output"] = encoder.pooler(out["last_hidden_state"])
        return out

    def _check(self, kwargs: dict) -> None:
        if kwargs["attention_mask"].dim() != 2:
            raise ValueError(
                "an unpadded encoder takes attention_mask (B, L), 1 = real token; masks between tokens have no packed form"
            )
        if kwargs.get("output_attentions"):
            raise ValueError("an unpadded encoder has no (B, H, L, L) weights to return; leave output_attentions off")
        if kwargs.get("encoder_hidden_states") is not None:
            raise ValueError("unpad is for self-attention; encoder_hidden_states was given")


def default_positions(encoder, ids: Tensor | None, embeds: Tensor | None) -> Tensor:
    """The positions (B or 1, L) that the model itself would take in the padded layout."""
    table: Any = getattr(encoder, "embeddings", None)
    from_ids = getattr(table, "create_position_ids_from_input_ids", None)
    if ids is not None and encoder.config.model_type == "mpnet":
        from transformers.models.mpnet.modeling_mpnet import create_position_ids_from_input_ids

        return create_position_ids_from_input_ids(ids, table.padding_idx)
    if ids is not None and from_ids is not None:
        return from_ids(ids, table.padding_idx)
    if ids is None and hasattr(table, "create_position_ids_from_inputs_embeds"):
        from_embeds = table.create_position_ids_from_inputs_embeds
        return from_embeds(embeds, table.padding_idx) if len(signature(from_embeds).parameters) > 1 else from_embeds(embeds)
    given = ids if ids is not None else embeds
    assert given is not None
    return torch.arange(given.shape[1], device=given.device)[None]


def in_one_run(index: PackIndex, columns: Tensor) -> bool:
    """Whether each row's real tokens follow each other, so that distances between slots are those between columns."""
    if torch.compiler.is_compiling():
        return False
    steps = columns[1:] - columns[:-1] == 1
    steps[(index.cu_seqlens[1:-1] - 1).clamp(0, max(steps.numel() - 1, 0))] = True
    return bool(steps.all())
