"""`torch.nn.attention.flex_attention` with a BlockMask and a score_mod.

Outside a compiled graph PyTorch's own uncompiled path is dense and slow, so asking for `flex` compiles it on first use;
`auto` never does. On the CPU it has a forward pass only.
"""

from __future__ import annotations

import functools
import shutil

import torch
from torch import Tensor

from headway.attention.backends.base import HALF, Adaptation, Backend, Features, Reason
from headway.attention.result import AttentionResult
from headway.attention.spec import AttentionSpec, Call


class Flex(Backend):
    name = "flex"
    skips_blocks = True
    features = Features(
        devices=("cpu", "cuda"), dtypes=(torch.float32, *HALF), need=("lse",), softcap=True, bias=True, bias_grad=True,
        value_dim=True,
    )  # fmt: skip

    def why_not(self, spec: AttentionSpec) -> list[Reason]:
        no = super().why_not(spec)
        if spec.device == "cpu" and spec.needs_grad:
            no.append(
                Reason("backward", "flex has no backward pass on the CPU", "run it under torch.no_grad(), or use 'tiled'")
            )
        if spec.device == "cpu" and not has_compiler():
            no.append(Reason("compiler", "flex needs a C++ compiler on the CPU", "install one, or set CXX"))
        if spec.device == "cpu" and spec.compiling and (spec.mask != "none" or looks_up(spec)):
            text = "flex on the CPU cannot be part of a compiled graph with a mask or with biases that are looked up"
            no.append(Reason("compiling", text, "call it outside torch.compile, or use 'tiled'"))
        if spec.device == "cuda" and min(spec.head_dim, spec.value_dim) < 16:
            no.append(Reason("head_dim", f"flex needs head_dim >= 16, got {min(spec.head_dim, spec.value_dim)}", "use 'tiled'"))
        return no

    def adaptations(self, spec: AttentionSpec) -> list[Adaptation]:
        if spec.compiling:
            return []
        return [Adaptation("compile", "the kernel is compiled on first use")]

    def prepare(self, mask, spec: AttentionSpec):
        return None if mask is None else mask.to_block_mask()

    def run(self, q: Tensor, k: Tensor, v: Tensor, state, call: Call, spec: AttentionSpec) -> AttentionResult:
        from torch.nn.attention.flex_attention import flex_attention

        # PyTorch's CPU template compiles look-ups for fixed lengths only: there each new shape compiles anew
        kernel = flex_attention if spec.compiling else compiled(not (spec.device == "cpu" and looks_up(spec)))
        if spec.device == "cpu" and not spec.compiling:  # refuses inputs that require gradients, even where none are recorded
            q, k, v = q.detach(), k.detach(), v.detach()
        more = {"block_mask": state} if state is not None else {}
        want_lse = "lse" in spec.need
        if want_lse:
            more["return_lse"] = True
        got = kernel(q, k, v, score_mod=score_mod(call, q.device), scale=call.scale, enable_gqa=spec.group != 1, **more)
        out, lse = got if want_lse else (got, None)
        return AttentionResult(out, lse)


def score_mod(call: Call, device):
    """Soft cap, then bias, as FlexAttention's score_mod; None if there is neither."""
    bias = call.bias
    if call.softcap is None and bias is None:
        return None
    # a captured tensor: a captured number would be one more symbol to compile for
    cap = None if call.softcap is None else torch.full((), call.softcap, device=device)
    if bias is not None:
        bias = bias.reshape((1,) * (4 - bias.dim()) + bias.shape)
        b_one, h_one, q_one, k_one = (n == 1 for n in bias.shape)

    def modify(s, b, h, q, k):
        if cap is not None:
            s = cap * torch.tanh(s / cap)
        if bias is not None:
            s = s + bias[0 if b_one else b, 0 if h_one else h, 0 if q_one else q, 0 if k_one else k]
        return s

    return modify


def looks_up(spec: AttentionSpec) -> bool:
    """Whether the mask or bias reads tensors (ids, lengths, positions) besides comparing positions."""
    return spec.mask not in ("none", "causal", "window") or spec.positions or spec.bias


@functools.cache
def compiled(dynamic: bool):
    from torch.nn.attention.flex_attention import flex_attention

    run = torch.compile(flex_attention, dynamic=dynamic)

    def loud(*args, **kwargs):  # past the limit of recompilations Dynamo would run the dense path without a word
        with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True, recompile_limit=64):
            return run(*args, **kwargs)

    return loud


@functools.cache
def has_compiler() -> bool:
    import os

    return any(shutil.which(c) for c in (os.environ.get("CXX"), "c++", "g++", "clang++") if c)
