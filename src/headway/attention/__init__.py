"""One attention call, with the same meaning on every backend. Imports only torch; works alone."""

from headway.attention import masks, ops
from headway.attention.backends import BUILT_IN
from headway.attention.backends.base import Adaptation, Backend, Features, Reason
from headway.attention.call import attention, attention_full, describe
from headway.attention.choice import attention_backend
from headway.attention.errors import BackendRefused, UnknownBackend
from headway.attention.plan import Plan, Policy, plan_attention
from headway.attention.record import record_plans
from headway.attention.reference import reference_attention
from headway.attention.registry import backends, get_backend, register_backend
from headway.attention.result import AttentionResult
from headway.attention.spec import AttentionSpec, Call
from headway.attention.switch import AttentionSwitch

for _backend in BUILT_IN:
    register_backend(_backend)

__all__ = [
    "Adaptation", "AttentionResult", "AttentionSpec", "AttentionSwitch", "Backend", "BackendRefused", "Call", "Features",
    "Plan", "Policy", "Reason", "attention", "attention_backend", "attention_full", "backends", "describe", "get_backend",
    "masks", "ops", "plan_attention", "record_plans", "reference_attention", "register_backend", "UnknownBackend",
]  # fmt: skip
