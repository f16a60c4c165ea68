"""`torch.nn.functional.scaled_dot_product_attention`, as PyTorch picks its kernel or with the kernel pinned.

No mask tensor is built where none is needed: full attention, and causal attention of as many queries as keys (only
there its top-left `is_causal` equals bottom-right alignment). That is decided from static facts outside the call, so
one graph serves training, evaluation and every length.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from headway.attention.backends.base import FLOATS, HALF, Adaptation, Backend, Features, Reason, expand_heads
from headway.attention.result import AttentionResult
from headway.attention.spec import AttentionSpec, Call

KERNELS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "math": SDPBackend.MATH,
}


class MaskTensor(NamedTuple):
    allowed: Tensor  # bool, broadcastable to (B, H, Lq, Lk)
    empty: Tensor | None  # rows that see nothing, where the kernel would not give 0 for them by itself


class Sdpa(Backend):
    """`sdpa`, or `sdpa:<kernel>` with one kernel and no other."""

    def __init__(self, kernel: str | None = None):
        self.kernel = kernel
        self.name = f"sdpa:{kernel}" if kernel else "sdpa"
        cuda_only = kernel in ("efficient", "cudnn")
        self.features = Features(
            devices=("cuda",) if cuda_only else None,
            dtypes=HALF if kernel == "cudnn" else FLOATS,
            bias=True,
            bias_grad=kernel != "flash",
            dropout=True,
            value_dim=kernel != "flash",
        )

    def why_not(self, spec: AttentionSpec) -> list[Reason]:
        no = super().why_not(spec)
        if self.kernel == "flash" and spec.device == "cpu" and spec.dropout:
            no.append(Reason("dropout", "PyTorch's CPU flash kernel has no dropout", "use 'sdpa:math' or 'tiled'"))
        if self.kernel == "flash" and spec.device == "cuda":
            if spec.dtype not in HALF:
                no.append(Reason("dtype", "PyTorch's CUDA flash kernel takes float16 and bfloat16", "cast q, k and v"))
            if needs_mask(spec) or spec.bias:
                no.append(Reason("mask", "PyTorch's CUDA flash kernel takes no mask tensor", "use 'sdpa:efficient' or 'tiled'"))
        return no

    def adaptations(self, spec: AttentionSpec) -> list[Adaptation]:
        made = []
        if needs_mask(spec):
            small = spec.tensor_mask or spec.decode
            made.append(
                Adaptation("dense_mask", "the mask as a dense bool tensor" + ("" if small else " is built"), costly=not small)
            )
            if spec.bias:
                made.append(Adaptation("mask_in_bias", "mask and bias are joined in one float tensor", costly=True))
        if takes_math(self.kernel, spec):
            made.append(Adaptation("dense_scores", "PyTorch's math kernel computes all Lq x Lk scores", costly=True))
        if expands(self.kernel, spec):
            made.append(Adaptation("expand_kv", "key/value heads are repeated for each query head"))
        return made

    def prepare(self, mask, spec: AttentionSpec) -> MaskTensor | None:
        if mask is None or not needs_mask(spec):
            return None
        allowed = mask.to_bool()
        if spec.device == "cpu":  # gives 0 for empty rows by itself
            return MaskTensor(allowed, None)
        empty = ~allowed.any(-1, keepdim=True)
        return MaskTensor(allowed | empty, empty)

    def run(self, q: Tensor, k: Tensor, v: Tensor, state, call: Call, spec: AttentionSpec) -> AttentionResult:
        if torch.is_autocast_enabled(spec.device):  # would cast q, k and v; precision is the call's business
            with torch.autocast(spec.device, enabled=False):
                return self.run(q, k, v, state, call, spec)
        if self.kernel is not None:
            with sdpa_kernel(KERNELS[self.kernel]):
                out = self._run(q, k, v, state, call, spec)
        else:
            out = self._run(q, k, v, state, call, spec)
        if state is not None and state.empty is not None:
            out = out.masked_fill(state.empty, 0.0)
        return AttentionResult(out)

    def _run(self, q: Tensor, k: Tensor, v: Tensor, state, call: Call, spec: AttentionSpec) -> Tensor:
        grouped = spec.group != 1
        if grouped and expands(self.kernel, spec):
            k, v, grouped = expand_heads(k, spec.group), expand_heads(v, spec.group), False
        if spec.device == "mps":  # wrong results for strided inputs
            q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        elif q.stride(3) != 1 or k.stride(3) != 1 or v.stride(3) != 1:
            # the fused kernels read whole heads: without this the dense kernel would run, or none
            q, k, v = (t if t.stride(3) == 1 else t.contiguous() for t in (q, k, v))
        attn_mask = None if state is None else state.allowed
        if call.bias is not None:
            attn_mask = _joined(call.bias, attn_mask, q.dtype)
        causal = spec.mask == "causal" and state is None and not spec.decode
        return scaled_dot_product_attention(
            q, k, v, attn_mask, call.dropout_p, is_causal=causal, scale=call.scale, enable_gqa=grouped
        )


def _joined(bias: Tensor, allowed: Tensor | None, dtype: torch.dtype) -> Tensor:
    """The additive mask, in a dtype that the kernel takes and that loses nothing of the bias."""
    if bias.dtype not in (dtype, torch.float32) or dtype == torch.float64:
        bias = bias.to(torch.promote_types(dtype, torch.float32))
    bias = bias.reshape((1,) * (4 - bias.dim()) + bias.shape)
    return bias if allowed is None else torch.where(allowed, bias, -torch.inf)


def needs_mask(spec: AttentionSpec) -> bool:
    """Whether the call needs a mask tensor: not if it is full, nor if it is causal and needs no alignment."""
    if spec.mask == "none":
        return False
    return not (spec.mask == "causal" and not spec.positions and (spec.square or spec.decode)) or spec.bias


def takes_math(kernel: str | None, spec: AttentionSpec) -> bool:
    """Whether the dense math kernel runs."""
    if kernel is not None:
        return kernel == "math"
    return spec.device == "cpu" and (spec.dropout or spec.bias_grad or spec.value_dim != spec.head_dim)


def expands(kernel: str | None, spec: AttentionSpec) -> bool:
    """Whether key/value heads must be repeated: only the flash and math kernels read grouped heads."""
    if spec.group == 1 or spec.device == "cpu":
        return False
    flash = spec.device == "cuda" and spec.dtype in HALF and not needs_mask(spec) and not spec.bias and spec.head_dim <= 256
    return kernel in ("efficient", "cudnn") or (kernel is None and not flash)
