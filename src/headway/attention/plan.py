"""Which backend serves a call, and why: planning is by static specs, cached, and explained."""

from __future__ import annotations

from dataclasses import dataclass, field

from headway.attention.backends.base import Adaptation, Backend, Reason
from headway.attention.errors import BackendRefused
from headway.attention.registry import backends, get_backend
from headway.attention.spec import AttentionSpec

DEFAULT_ORDER = {
    "cpu": ("sdpa", "tiled", "eager"),
    "cuda": ("flash", "sdpa", "varlen", "xformers", "tiled", "eager"),
    "mps": ("sdpa", "tiled", "eager"),
}


@dataclass(frozen=True)
class Policy:
    """Bounds on what `auto` may choose.

    order: backend names per device type, or one tuple for all; None is the built-in order. allow: codes of adaptations
    that may be made, None = all. max_dense_mask_mb: the largest Lq x Lk boolean mask that may be built, in MiB per call,
    None = no bound; it holds for explicitly named backends too.
    """

    order: tuple[str, ...] | None = None
    allow: frozenset[str] | None = None
    max_dense_mask_mb: float | None = None


@dataclass(frozen=True)
class Plan:
    """The choice for one spec. `refused` holds what stood above it in the order, with every reason."""

    spec: AttentionSpec
    backend: Backend
    adaptations: tuple[Adaptation, ...]
    refused: tuple[tuple[str, tuple[Reason, ...]], ...] = ()
    passed: tuple[str, ...] = ()  # accepted, but only with a costly adaptation
    asked: str = "auto"
    policy: Policy = field(default_factory=Policy)
    state_key: str = ""  # the backend's name, "|" and the spec: under which a bound mask keeps what `backend.prepare` gave

    def __post_init__(self):
        object.__setattr__(self, "state_key", f"{self.backend.name}|{tuple(self.spec)}")

    def explain(self, shape: tuple[int, int, int, int] | None = None) -> str:
        """What was chosen and why. `shape` = (B, Hq, Lq, Lk) adds the bytes of any dense mask or scores."""
        lines = [f"attention: {self.backend.name}" + (f" (asked for '{self.asked}')" if self.asked != "auto" else " (auto)")]
        for name, reasons in self.refused:
            for r in reasons:
                lines.append(f"  not {name}: {r.text}" + (f"; {r.fix}" if r.fix else ""))
        for name in self.passed:
            why = ", ".join(a.text for a in get_backend(name).adaptations(self.spec) if a.costly)
            lines.append(f"  not {name}: accepts, but {why}")
        for a in self.adaptations:
            lines.append(f"  adapted: {a.text}" + (_bytes(a, shape) if shape and a.costly else ""))
        if not any(a.code == "dense_mask" for a in self.adaptations):
            lines.append("  dense mask: none built")
        lines.append(
            f"  under torch.compile: {'one full graph, dynamic shapes' if self.backend.fullgraph else 'breaks the graph'}"
        )
        return "\n".join(lines)


def _bytes(adaptation: Adaptation, shape: tuple[int, int, int, int]) -> str:
    batch, heads, q_len, kv_len = shape
    entries = batch * q_len * kv_len * (heads * 4 if adaptation.code == "dense_scores" else 1)
    return f", {entries / 2**20:.1f} MiB"


DEFAULT_POLICY = Policy()
_plans: dict = {}


def plan_attention(spec: AttentionSpec, backend: str = "auto", policy: Policy | None = None) -> Plan:
    """The plan for `spec`. A named backend that refuses raises `BackendRefused` with every reason and the nearest other."""
    policy = DEFAULT_POLICY if policy is None else policy
    key = (backend, spec) if policy is DEFAULT_POLICY else (backend, spec, policy)
    plan = _plans.get(key)
    if plan is None:
        plan = _plans[key] = _choose(spec, policy) if backend == "auto" else _named(spec, backend, policy)
    return plan


def state_key_at_trace_time(spec: tuple, backend: str, policy: Policy) -> str:
    """`Plan.state_key` while Dynamo traces: a pure function of static values, so its result is a constant."""
    return plan_attention(AttentionSpec(*spec), backend, policy).state_key


# what torch.compiler.assume_constant_result sets, which would import all of Dynamo (half a second) to do so
state_key_at_trace_time._dynamo_marked_constant = True  # type: ignore[attr-defined]


def forget_plans() -> None:
    """Plans are made anew; called when a backend is registered."""
    _plans.clear()


def _reasons(backend: Backend, spec: AttentionSpec, policy: Policy) -> list[Reason]:
    no = list(backend.why_not(spec))
    if not no and policy.allow is not None:
        for a in backend.adaptations(spec):
            if a.code not in policy.allow:
                no.append(Reason("policy", f"the policy does not allow '{a.code}': {a.text}", "add it to Policy(allow=...)"))
    return no


def _order(spec: AttentionSpec, policy: Policy) -> list[Backend]:
    names = policy.order or DEFAULT_ORDER.get(spec.device, ("tiled", "eager"))
    known = backends()
    for name in policy.order or ():
        get_backend(name)  # an unknown name in a user's policy is an error
    return [known[n] for n in names if n in known]


def _choose(spec: AttentionSpec, policy: Policy) -> Plan:
    refused: list[tuple[str, tuple[Reason, ...]]] = []
    costly: list[tuple[Backend, tuple[Adaptation, ...]]] = []
    for backend in _order(spec, policy):
        no = _reasons(backend, spec, policy)
        if no:
            refused.append((backend.name, tuple(no)))
            continue
        made = tuple(backend.adaptations(spec))
        if not any(a.costly for a in made):
            return Plan(spec, backend, made, tuple(refused), tuple(b.name for b, _ in costly), "auto", policy)
        costly.append((backend, made))
    if not costly:
        raise BackendRefused("auto", [Reason(r.code, f"{n}: {r.text}", r.fix) for n, rs in refused for r in rs], None)
    backend, made = costly[0]
    return Plan(spec, backend, made, tuple(refused), (), "auto", policy)


def _named(spec: AttentionSpec, name: str, policy: Policy) -> Plan:
    backend = get_backend(name)
    no = _reasons(backend, spec, policy)
    if no:
        try:
            nearest = _choose(spec, policy).backend.name
        except BackendRefused:
            nearest = None
        raise BackendRefused(name, no, nearest)
    return Plan(spec, backend, tuple(backend.adaptations(spec)), (), (), name, policy)
