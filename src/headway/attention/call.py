"""The one attention call."""

from __future__ import annotations

import math
from operator import index

import torch
from torch import Tensor
from torch.compiler import is_compiling

from headway.attention.backends.base import Backend
from headway.attention.choice import current
from headway.attention.masks import BoundMask, Mask, checked
from headway.attention.masks.bounds import ordered_kind
from headway.attention.plan import DEFAULT_POLICY, Policy, plan_attention, state_key_at_trace_time
from headway.attention.record import recording
from headway.attention.registry import get_backend
from headway.attention.result import AttentionResult
from headway.attention.spec import AttentionSpec, Call


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Mask | BoundMask | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    bias: Tensor | None = None,
    sink_logits: Tensor | None = None,
    dropout_p: float = 0.0,
    q_positions: Tensor | None = None,
    kv_positions: Tensor | None = None,
    scores: str = "fp32",
    backend: str = "auto",
    layer_backend: str | None = None,
) -> Tensor:
    """Attention, with the meaning that `reference.py` defines, by whichever backend is chosen.

    Args:
        query: (B, Hq, Lq, D). key: (B, Hkv, Lk, D). value: (B, Hkv, Lk, Dv). `Hq % Hkv == 0`; query head h reads
            key/value head `h // (Hq // Hkv)`. One floating dtype for all three.
        mask: a mask expression (`headway.attention.masks`), or one bound to this call's lengths with `mask.bind(...)`,
            which layers can share. None = full attention.
        scale: multiplies the scores; 1/sqrt(D) by default. softcap: `s = c * tanh(s / c)`, positive and finite.
        bias: added to the scores after the soft cap, broadcastable to (B, Hq, Lq, Lk), differentiable.
        sink_logits: (Hq,), one logit per head that takes part in the softmax and gives no value.
        dropout_p: probability of dropping a weight, 0 <= p < 1. Reproducible under `torch.manual_seed`.
        q_positions: (Lq,) or (B, Lq) integers; the last Lq key positions by default. kv_positions: (Lk,) or (B, Lk); arange.
        scores: "fp32" keeps scores in fp32 (fp64 for fp64 inputs); "input" rounds them to the input dtype.
        backend: a name (`headway.attention.backends()`), or "auto": what the surrounding `attention_backend` block says,
            else `layer_backend`, else the first acceptable in the policy's order.
        layer_backend: the choice of the layer that makes the call; an `attention_backend` block beats it.

    Returns: (B, Hq, Lq, Dv), dtype of the query. Rows with nothing to attend to are 0.
    Raises: BackendRefused if a named backend cannot do this exactly; ValueError or TypeError for malformed input.
    """
    return _attention(
        query, key, value, mask, scale, softcap, bias, sink_logits, dropout_p, q_positions, kv_positions, scores, backend,
        layer_backend, (),
    ).output  # fmt: skip


def attention_full(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    need: tuple[str, ...] = ("lse", "weights"),
    mask: Mask | BoundMask | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    bias: Tensor | None = None,
    sink_logits: Tensor | None = None,
    dropout_p: float = 0.0,
    q_positions: Tensor | None = None,
    kv_positions: Tensor | None = None,
    scores: str = "fp32",
    backend: str = "auto",
    layer_backend: str | None = None,
) -> AttentionResult:
    """As `attention`, with more of the result: `need` is any of "lse" (B, Hq, Lq) and "weights" (B, Hq, Lq, Lk)."""
    need = tuple(sorted(need))
    if not set(need) <= {"lse", "weights"}:
        raise ValueError(f"need may hold 'lse' and 'weights', {need!r} was given")
    return _attention(
        query, key, value, mask, scale, softcap, bias, sink_logits, dropout_p, q_positions, kv_positions, scores, backend,
        layer_backend, need,
    )  # fmt: skip


def _attention(q, k, v, mask, scale, softcap, bias, sinks, dropout_p, q_pos, kv_pos, scores, backend, layer, need):
    policy = DEFAULT_POLICY
    if backend == "auto":
        context = current()
        if context is not None:
            backend, policy = context
        if backend == "auto" and layer is not None:
            backend = layer
    spec = describe(q, k, v, mask, softcap, bias, sinks, dropout_p, q_pos, kv_pos, scores, need)
    if spec.compiling:  # a string is a constant for Dynamo, a plan is not
        key = state_key_at_trace_time(tuple(spec), backend, policy)
        chosen = get_backend(key.split("|")[0])
    else:
        plan = plan_attention(spec, backend, policy)
        chosen, key = plan.backend, plan.state_key
        seen = recording.get()
        if seen is not None:
            seen.append((plan, (q.shape[0], q.shape[1], q.shape[2], k.shape[2])))
    call = Call(spec.head_dim**-0.5 if scale is None else _finite(scale, "scale"), softcap, bias, sinks, dropout_p)
    state = None
    if mask is not None:
        bound = mask if isinstance(mask, BoundMask) else _bind(mask, q, k, q_pos, kv_pos)
        state = prepared(chosen, key, bound, spec, policy)
    return chosen.run(q, k, v, state, call, spec)


def describe(
    q,
    k,
    v,
    mask=None,
    softcap=None,
    bias=None,
    sinks=None,
    dropout_p=0.0,
    q_pos=None,
    kv_pos=None,
    scores="fp32",
    need=(),
) -> AttentionSpec:
    """Checks the arguments of a call and says what it needs. Reads shapes, dtypes and flags, never values."""
    if q.dim() != 4 or k.dim() != 4 or v.dim() != 4:
        shapes = ", ".join(str(tuple(t.shape)) for t in (q, k, v))
        raise ValueError(f"query, key and value must have shape (batch, heads, length, head_dim); {shapes} were given")
    batch, heads, q_len, dim = q.shape
    kv_batch, kv_heads, kv_len, k_dim = k.shape
    v_batch, v_heads, v_len, v_dim = v.shape
    if v_batch != kv_batch or v_heads != kv_heads or v_len != kv_len:
        raise ValueError(f"key {tuple(k.shape)} and value {tuple(v.shape)} must agree in batch, heads and length")
    if kv_batch != batch or k_dim != dim or kv_heads == 0 or heads % kv_heads:
        raise ValueError(
            f"query {tuple(q.shape)} and key {tuple(k.shape)} do not fit: (B, Hq, Lq, D) and (B, Hkv, Lk, D) with the same B "
            "and D and Hq a multiple of Hkv are accepted"
        )
    dtype, device = q.dtype, q.device
    on = device.type
    if k.dtype != dtype or v.dtype != dtype or not dtype.is_floating_point:
        raise TypeError(f"q, k and v must share one floating dtype; {dtype}, {k.dtype} and {v.dtype} were given; cast them")
    if k.device != device or v.device != device:
        raise ValueError(f"q, k and v must be on one device; {device}, {k.device} and {v.device} were given")
    kind, tensor_mask, positions = "none", False, q_pos is not None or kv_pos is not None
    if mask is not None:
        if isinstance(mask, BoundMask):
            _check_bound(mask, batch, heads, q_len, kv_len, positions)
            kind, positions = mask.kind, mask.q_positions is not None or mask.kv_positions is not None
            tensor_mask = mask.tensor_mask
        else:
            kind, tensor_mask = ordered_kind(checked(mask), kv_pos is not None)
    if softcap is not None and not 0 < softcap < math.inf:
        raise ValueError(f"softcap must be positive and finite, or None for no cap; {softcap} was given")
    if not 0.0 <= dropout_p < 1.0:
        raise ValueError(f"dropout_p must be in [0, 1), {dropout_p} was given")
    if scores != "fp32" and scores != "input":
        raise ValueError(f"scores must be 'fp32' or 'input', {scores!r} was given")
    if bias is not None:
        _check_bias(bias, (batch, heads, q_len, kv_len))
    if sinks is not None and (sinks.shape != (heads,) or not sinks.is_floating_point()):
        raise ValueError(
            f"sink_logits must be {heads} floats, one per query head; {tuple(sinks.shape)} {sinks.dtype} was given"
        )
    # head sizes are static, lengths are not: `index` and the branches make plain constants of them while tracing
    one = True if q_len == 1 else False  # noqa: SIM210
    square = True if q_len == kv_len else False  # noqa: SIM210
    drops = True if dropout_p > 0.0 else False  # noqa: SIM210
    grad = torch.is_grad_enabled()
    bias_grad = grad and bias is not None and bias.requires_grad
    needs_grad = bias_grad or (
        grad and (q.requires_grad or k.requires_grad or v.requires_grad or (sinks is not None and sinks.requires_grad))
    )
    return AttentionSpec(
        dtype, on, _capability(device) if on == "cuda" else None, index(dim), index(v_dim),
        index(heads // kv_heads), one, square, needs_grad, is_compiling(), kind, tensor_mask, positions,
        softcap is not None, bias is not None, bias_grad, sinks is not None, drops, scores, need,
    )  # fmt: skip


def prepared(backend: Backend, key: str, bound: BoundMask, spec: AttentionSpec, policy: Policy):
    """The state of `backend` for this mask; made once and kept with the mask."""
    if policy.max_dense_mask_mb is not None and any(a.code == "dense_mask" for a in backend.adaptations(spec)):
        size = bound.batch * bound.q_len * bound.kv_len / 2**20
        if size > policy.max_dense_mask_mb:
            raise ValueError(
                f"attention backend '{backend.name}' needs a dense mask of {size:.1f} MiB, the policy allows "
                f"{policy.max_dense_mask_mb} MiB; raise Policy(max_dense_mask_mb=...) or choose a backend that needs none, "
                "such as 'tiled'"
            )
    return bound.once(key, lambda: backend.prepare(bound, spec))


def _bind(mask: Mask, q: Tensor, k: Tensor, q_pos, kv_pos) -> BoundMask:
    return mask.bind(
        q.shape[2],
        k.shape[2],
        batch=q.shape[0],
        heads=q.shape[1],
        q_positions=q_pos,
        kv_positions=kv_pos,
        device=q.device,
    )


def _check_bound(mask: BoundMask, batch, heads, q_len, kv_len, positions: bool) -> None:
    if mask.q_len != q_len or mask.kv_len != kv_len or (mask.batch != 1 and mask.batch != batch):
        raise ValueError(
            f"this mask was made for another length: bound to batch {mask.batch}, {mask.q_len} queries and {mask.kv_len} keys, "
            f"the call has {batch}, {q_len} and {kv_len}"
        )
    if mask.heads != 1 and mask.heads != heads:
        raise ValueError(f"this mask was bound for {mask.heads} heads, the call has {heads}")
    if positions:
        raise ValueError("a bound mask carries its positions; pass q_positions and kv_positions to mask.bind(...) instead")


def _check_bias(bias: Tensor, want) -> None:
    if not bias.is_floating_point():
        raise TypeError(f"bias must be a float tensor, {bias.dtype} was given; a boolean one is a mask: masks.dense(tensor)")
    fits = bias.dim() <= 4 and all(b == 1 or b == n for b, n in zip(reversed(bias.shape), reversed(want)))
    if not fits:
        raise ValueError(f"bias of shape {tuple(bias.shape)} does not broadcast to (B, Hq, Lq, Lk) = {tuple(want)}")


def _finite(value: float, name: str) -> float:
    if not -math.inf < value < math.inf:  # a comparison traces where module floats are symbols, math.isfinite does not
        raise ValueError(f"{name} must be finite, {value} was given")
    return value


def _capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)
