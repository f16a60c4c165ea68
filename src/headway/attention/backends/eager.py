"""Plain PyTorch, dense, every feature; the readable one."""

from __future__ import annotations

import torch
from torch import Tensor

from headway.attention.backends.base import Adaptation, Backend, Features, expand_heads
from headway.attention.result import AttentionResult
from headway.attention.spec import AttentionSpec, Call


class Eager(Backend):
    name = "eager"
    features = Features(
        scores=("fp32", "input"), need=("lse", "weights"), softcap=True, bias=True, bias_grad=True, sinks=True, dropout=True,
        value_dim=True,
    )  # fmt: skip

    def adaptations(self, spec: AttentionSpec) -> list[Adaptation]:
        return [Adaptation("dense_scores", "computes all Lq x Lk scores of every head", costly=True)]

    def prepare(self, mask, spec):
        return None if mask is None else mask.to_bool()

    def run(self, q: Tensor, k: Tensor, v: Tensor, state, call: Call, spec: AttentionSpec) -> AttentionResult:
        with torch.autocast(q.device.type, enabled=False):  # scores keep their precision
            work = torch.promote_types(q.dtype, torch.float32)
            k, v = expand_heads(k, spec.group), expand_heads(v, spec.group)
            s = q.to(work) @ k.to(work).transpose(-1, -2) * call.scale  # (B, Hq, Lq, Lk)
            if call.softcap is not None:
                s = torch.tanh(s / call.softcap) * call.softcap
            if call.bias is not None:
                s = s + call.bias.to(work)
            if spec.scores == "input":
                s = s.to(q.dtype).to(work)
            if state is not None:
                s = s.masked_fill(~state, -torch.inf)
            top = s.detach().amax(-1, keepdim=True) if s.shape[-1] else s.new_full((*s.shape[:-1], 1), -torch.inf)
            if call.sink_logits is not None:
                sink = call.sink_logits.to(work).view(1, -1, 1, 1)
                top = torch.maximum(top, sink.detach())
            top = top.masked_fill(top == -torch.inf, 0.0)  # a row with nothing to attend to
            p = torch.exp(s - top)
            total = p.sum(-1, keepdim=True)
            if call.sink_logits is not None:
                total = total + torch.exp(sink - top)
            lse = (total.log() + top).squeeze(-1) if "lse" in spec.need else None
            p = p / total.masked_fill(total == 0, 1.0)
            if call.dropout_p:
                p = torch.dropout(p, call.dropout_p, True)
            output = (p @ v.to(work)).to(q.dtype)
            return AttentionResult(output, lse, p if "weights" in spec.need else None)
