"""The attention function that transformers calls in each layer."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headway.attention import attention, attention_full
from headway.attention.masks import causal, documents
from headway.integrations.transformers.mask import HeadwayMask

# what models hand down to every layer that says nothing about attention itself
IDLE = frozenset(
    {
        "position_ids", "cache_position", "use_cache", "output_hidden_states", "return_dict", "num_items_in_batch",
        "output_router_logits", "max_length_q", "max_length_k", "deterministic", "position_embeddings", "labels",
        "logits_to_keep", "past_key_values", "layer_idx", "input_ids", "inputs_embeds", "token_type_ids",
        "mm_token_type_ids", "image_grid_thw", "video_grid_thw", "rope_deltas", "second_per_grid_ts", "return_loss",
    }
)  # fmt: skip


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: HeadwayMask | Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    sliding_window: int | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    is_causal: bool | None = None,
    output_attentions: bool | None = None,
    cu_seq_lens_q: Tensor | None = None,
    cu_seq_lens_k: Tensor | None = None,
    backend: str = "auto",
    **other,
) -> tuple[Tensor, Tensor | None]:
    """query (B, Hq, Lq, D), key and value (B, Hkv, Lk, D) -> output (B, Lq, Hq, Dv) and, if asked for, weights.

    Raises TypeError for a keyword with a meaning that is not known here, ValueError where mask and keywords disagree.
    """
    unknown = {n: v for n, v in other.items() if n not in IDLE and v is not None and v is not False}
    if unknown:
        raise TypeError(
            f"{type(module).__name__} passes {sorted(unknown)} to attention, which Headway does not know and will not ignore; "
            "use attn_implementation='eager' for this model"
        )
    mask, bias = _mask(module, query, key, attention_mask, sliding_window, is_causal)
    if cu_seq_lens_q is not None or cu_seq_lens_k is not None:
        mask = _documents(mask, query, key, cu_seq_lens_q, cu_seq_lens_k)
    bound = mask.bound if isinstance(mask, HeadwayMask) else mask
    if position_bias is not None:
        bias = position_bias if bias is None else bias + position_bias
    call = {
        "mask": bound, "scale": scaling, "softcap": softcap, "bias": bias, "sink_logits": s_aux, "dropout_p": dropout or 0.0,
        "backend": backend,
    }  # fmt: skip
    if s_aux is not None:
        call["sink_logits"] = s_aux.reshape(-1)
    if output_attentions:
        result = attention_full(query, key, value, need=("weights",), **call)
        assert result.weights is not None
        return result.output.transpose(1, 2).contiguous(), result.weights.to(query.dtype)
    return attention(query, key, value, **call).transpose(1, 2).contiguous(), None


def _mask(module, query: Tensor, key: Tensor, mask, sliding_window, is_causal):
    """The structured mask and, from a float tensor, the bias. A float mask is what eager attention adds to the scores."""
    kv_len = key.shape[2]
    if isinstance(mask, HeadwayMask):
        _check_window(module, mask, sliding_window, kv_len)
        return mask, mask.bias
    if mask is None:
        if sliding_window is not None and kv_len > sliding_window:
            raise ValueError(
                f"{type(module).__name__} asks for a sliding window of {sliding_window} but brings no mask for {kv_len} keys; "
                "Headway reads windows from the mask"
            )
        wants = is_causal if is_causal is not None else getattr(module, "is_causal", False)
        return (causal() if wants and query.shape[2] > 1 else None), None
    if not isinstance(mask, Tensor) or mask.dim() != 4:
        given = f"{mask.dtype} {tuple(mask.shape)}" if isinstance(mask, Tensor) else type(mask).__name__
        raise TypeError(f"an attention mask of transformers' shape (B, 1, Lq, Lk) is expected, {given} was given")
    mask = mask if mask.shape[-1] == kv_len else mask[..., :kv_len]
    if mask.dtype == torch.bool:
        from headway.attention.masks import dense

        return dense(mask), None
    if not mask.is_floating_point():
        raise TypeError(f"a 4-D attention mask is bool (True = attend) or an additive float tensor, {mask.dtype} was given")
    return None, mask


def _check_window(module, mask: HeadwayMask, sliding_window: int | None, kv_len) -> None:
    """A window is told twice, by mask and keyword; both must say the same."""
    if not isinstance(sliding_window, int) or isinstance(sliding_window, bool):
        return
    left, right = mask.window or (None, None)
    if left is not None:
        told = {left + 1} if right == 0 else {left, left + 1}
        if sliding_window not in told:
            raise ValueError(
                f"{type(module).__name__} asks for a sliding window of {sliding_window}, its mask has one of {left + 1} keys"
            )
    elif mask.band_known and mask.shape[2] != 1 and kv_len > sliding_window:
        raise ValueError(
            f"{type(module).__name__} asks for a sliding window of {sliding_window}, its mask has none over {kv_len} keys"
        )


def _documents(mask, query: Tensor, key: Tensor, cu_q: Tensor | None, cu_kv: Tensor | None):
    cu_q, cu_kv = cu_q if cu_q is not None else cu_kv, cu_kv if cu_kv is not None else cu_q
    assert cu_q is not None and cu_kv is not None
    if query.shape[0] != 1:
        raise ValueError(f"cu_seq_lens describe one row of packed tokens, the batch has {query.shape[0]} rows")
    if isinstance(mask, HeadwayMask):
        return mask.within(cu_q, cu_kv)
    inside = documents.from_cu_seqlens(cu_q, cu_kv)
    return inside if mask is None else mask & inside
