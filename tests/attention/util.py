"""Running a backend and the float64 reference on the same call, with gradients."""

from __future__ import annotations

import torch

from headway.attention import attention_full, reference_attention
from headway.attention.masks import Mask


def leaves(q, k, v, **extra):
    named = {
        "q": q,
        "k": k,
        "v": v,
        **{n: t for n, t in extra.items() if isinstance(t, torch.Tensor) and t.is_floating_point()},
    }
    return {n: t.detach().clone().requires_grad_() for n, t in named.items()}


def run(function, q, k, v, call: dict, *, cast=None, grad: bool = True, need=("lse",), weigh_lse: bool = True):
    """{"output", "lse", gradients}: of a fixed scalar of output (and log-sum-exp), in float64."""
    extra = {n: call[n] for n in ("bias", "sink_logits") if call.get(n) is not None}
    inputs = leaves(q, k, v, **extra)
    if cast is not None:
        inputs = {n: t.detach().to(cast).requires_grad_() for n, t in inputs.items()}
    rest = {n: x for n, x in call.items() if n not in extra}
    extras = {n: inputs[n] for n in extra}
    with torch.set_grad_enabled(grad):
        result = function(
            inputs["q"], inputs["k"], inputs["v"], **extras, **rest, **({"need": need} if need is not None else {})
        )
        out = {"output": result.output.detach().double()}
        loss = (result.output.double() * probe(result.output)).sum()
        if result.lse is not None:
            out["lse"] = result.lse.detach().double()
            if weigh_lse:
                loss = loss + (result.lse.double().masked_fill(result.lse == -torch.inf, 0.0) * probe(result.lse)).sum()
    if grad:
        found = torch.autograd.grad(loss, list(inputs.values()), allow_unused=True)
        out.update({n: torch.zeros_like(t).double() if g is None else g.double() for (n, t), g in zip(inputs.items(), found)})
    return out


def probe(t: torch.Tensor) -> torch.Tensor:
    g = torch.Generator().manual_seed(7)
    return torch.randn(t.shape, generator=g, dtype=torch.float64)


def reference(q, k, v, call, *, grad=True, weigh_lse=True, with_lse=True):
    def function(*args, **kw):
        result = reference_attention(*args, **kw)
        return result if with_lse else result._replace(lse=None)

    return run(function, q, k, v, call, cast=torch.float64, grad=grad, need=None, weigh_lse=weigh_lse)


def backend(name, q, k, v, call, *, grad=True, need=("lse",), weigh_lse=True):
    return run(
        lambda *a, **kw: attention_full(*a, backend=name, **kw), q, k, v, call, grad=grad, need=need, weigh_lse=weigh_lse
    )


def plain(q, k, v, call, *, grad=True, with_lse=True, weigh_lse=True):
    """The call as a few lines of PyTorch in the dtype of its inputs: how exact plain low-precision code is."""

    def function(q, k, v, *, mask=None, scale=None, softcap=None, bias=None, sink_logits=None, dropout_p=0.0, scores="fp32"):
        group = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        s = (q @ k.transpose(-1, -2)) * (q.shape[-1] ** -0.5 if scale is None else scale)
        if softcap is not None:
            s = softcap * torch.tanh(s / softcap)
        if bias is not None:
            s = s + bias.to(s.dtype)
        if isinstance(mask, Mask):
            mask = mask.bind(q.shape[2], k.shape[2], batch=q.shape[0], heads=q.shape[1])
        if mask is not None:
            s = s.masked_fill(~mask.to_bool(), -torch.inf)
        if sink_logits is not None:
            s = torch.cat([s, sink_logits.to(s.dtype).view(1, -1, 1, 1).expand(*s.shape[:3], 1)], -1)
        empty = (s == -torch.inf).all(-1, keepdim=True)
        s = s.masked_fill(empty, 0.0)
        p = torch.softmax(s, -1).masked_fill(empty, 0.0)[..., : k.shape[2]]
        lse = torch.logsumexp(s, -1).masked_fill(empty[..., 0], -torch.inf)
        from headway.attention import AttentionResult

        return AttentionResult(p @ v, lse if with_lse else None)

    return run(function, q, k, v, call, grad=grad, need=None, weigh_lse=weigh_lse)


# relative to the largest entry: an error below it is nothing (one rounding of the result; for float64 sums, many)
FLOOR = {torch.float64: 1e-11, torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}


def error(got: dict, want: dict) -> dict[str, float]:
    out = {}
    for name in want:
        a, b = got[name], want[name]
        assert a.shape == b.shape, (name, a.shape, b.shape)
        assert torch.equal(torch.isinf(a), torch.isinf(b)) and torch.equal(a[torch.isinf(a)], b[torch.isinf(b)]), name
        d = (a - b)[~torch.isinf(b)]
        assert not torch.isnan(d).any(), f"{name} is NaN somewhere"
        out[name] = float(d.abs().max()) if d.numel() else 0.0
    return out


def assert_close(got: dict, want: dict, low: dict, dtype: torch.dtype) -> None:
    """Within twice the error of plain code in the same dtype, plus the floor.

    Gradients of keys, values, biases and sinks are sums over rows, so their floor grows like the error of such a sum.
    """
    mine, theirs = error(got, want), error(low, want)
    rows = got["output"].shape[1] * got["output"].shape[2]
    for name, e in mine.items():
        finite = want[name][~torch.isinf(want[name])]
        largest = float(finite.abs().max()) if finite.numel() else 0.0
        size = max(1.0, largest, rows**0.5 if name in ("k", "v", "bias", "sink_logits") else 0.0)
        assert e <= 2 * theirs[name] + FLOOR[dtype] * size, f"{name}: error {e:.2e}, plain {theirs[name]:.2e}"
