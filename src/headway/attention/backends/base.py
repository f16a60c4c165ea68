"""What a backend is: it may refuse, it may never reinterpret."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from headway.attention.masks import BoundMask
from headway.attention.result import AttentionResult
from headway.attention.spec import AttentionSpec, Call

HALF = (torch.float16, torch.bfloat16)
FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
ALL_MASKS = ("none", "causal", "window", "rows", "documents", "dense", "predicate")


class Reason(NamedTuple):
    """Why a backend refuses: a code for programs, a text for people, and what would make it accept."""

    code: str
    text: str
    fix: str = ""


class Adaptation(NamedTuple):
    """An exact conversion that a backend makes. `costly` ones grow with Lq x Lk; `auto` avoids them where it can."""

    code: str
    text: str
    costly: bool = False


@dataclass(frozen=True)
class Features:
    """What a backend can do. Whatever is not listed here is refused."""

    devices: tuple[str, ...] | None = None  # None = every device
    dtypes: tuple[torch.dtype, ...] = FLOATS
    masks: tuple[str, ...] = ALL_MASKS
    scores: tuple[str, ...] = ("fp32",)
    need: tuple[str, ...] = ()
    backward: bool = True
    softcap: bool = False
    bias: bool = False
    bias_grad: bool = False
    sinks: bool = False
    dropout: bool = False
    value_dim: bool = False  # Dv != D
    groups: bool = True  # Hq != Hkv
    positions: bool = True


def refusals(name: str, features: Features, spec: AttentionSpec) -> list[Reason]:
    """Every reason that follows from the feature table."""
    no = []
    if features.devices is not None and spec.device not in features.devices:
        no.append(Reason("device", f"{name} runs on {', '.join(features.devices)}, not on {spec.device}", "move the tensors"))
    if spec.dtype not in features.dtypes:
        names = ", ".join(str(d).removeprefix("torch.") for d in features.dtypes)
        no.append(Reason("dtype", f"{name} takes {names}, not {str(spec.dtype).removeprefix('torch.')}", "cast q, k and v"))
    if spec.mask not in features.masks:
        no.append(Reason("mask", f"{name} has no '{spec.mask}' masks", f"it has {', '.join(features.masks)}"))
    if spec.scores not in features.scores:
        no.append(Reason("scores", f"{name} cannot compute scores='{spec.scores}'", f"scores={features.scores[0]!r}"))
    for what in spec.need:
        if what not in features.need:
            no.append(Reason(what, f"{name} does not return {what}", f"drop {what!r} from need"))
    if spec.needs_grad and not features.backward:
        no.append(Reason("backward", f"{name} has no backward pass on {spec.device}", "run it under torch.no_grad()"))
    for feature in ("softcap", "bias", "bias_grad", "sinks", "dropout", "positions"):
        if getattr(spec, feature) and not getattr(features, feature):
            no.append(Reason(feature, f"{name} has no {TEXT[feature]}"))
    if spec.value_dim != spec.head_dim and not features.value_dim:
        no.append(Reason("value_dim", f"{name} needs values as wide as keys, got {spec.value_dim} and {spec.head_dim}"))
    if spec.group != 1 and not features.groups:
        no.append(Reason("groups", f"{name} needs as many key/value heads as query heads"))
    return no


TEXT = {
    "softcap": "soft cap",
    "bias": "additive bias",
    "bias_grad": "gradient for the bias",
    "sinks": "sink logits",
    "dropout": "dropout",
    "positions": "explicit positions",
}


class Backend:
    """One way to compute attention. Subclass it, set `name` and `features`, implement `run`, `register_backend` it."""

    name: str
    features: Features
    skips_blocks: bool = False  # whether documents that do not see each other cost nothing
    fullgraph: bool = True  # whether it traces under torch.compile(fullgraph=True, dynamic=True)

    def why_not(self, spec: AttentionSpec) -> list[Reason]:
        """All reasons why this backend refuses `spec`; empty if it accepts."""
        return refusals(self.name, self.features, spec)

    def adaptations(self, spec: AttentionSpec) -> list[Adaptation]:
        """The exact conversions that `run` makes for this spec."""
        return []

    def prepare(self, mask: BoundMask | None, spec: AttentionSpec) -> Any:
        """What the mask becomes for this backend. Called once per forward; the layers share the state."""
        return mask

    def run(self, q: Tensor, k: Tensor, v: Tensor, state: Any, call: Call, spec: AttentionSpec) -> AttentionResult:
        """q (B, Hq, Lq, D), k (B, Hkv, Lk, D), v (B, Hkv, Lk, Dv); `state` is what `prepare` gave (None: no mask)."""
        raise NotImplementedError


def expand_heads(t: Tensor, group: int) -> Tensor:
    """(B, Hkv, L, D) -> (B, Hkv * group, L, D): query head h reads key/value head h // group."""
    return t if group == 1 else t.repeat_interleave(group, dim=1)
