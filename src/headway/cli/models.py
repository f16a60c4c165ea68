"""`headway models`: families, tasks, features, and the backends that accept them on the CPU."""

from __future__ import annotations

from headway.attention import AttentionSpec, backends
from headway.models.registry import FAMILIES

# family -> what its attention needs beyond plain causal or full attention
NEEDS: dict[str, tuple[dict, str]] = {
    "llama": ({"mask": "documents", "group": 3}, "causal, grouped queries"),
    "gemma": ({"mask": "documents", "head_dim": 256, "value_dim": 256}, "causal, head_dim 256"),
    "gemma2": ({"mask": "documents", "softcap": True, "head_dim": 256, "value_dim": 256}, "causal, windows, soft cap"),
    "gemma3_text": ({"mask": "documents", "head_dim": 256, "value_dim": 256, "group": 4}, "causal, windows"),
    "phi3": ({"mask": "documents"}, "causal, windows"),
    "glm": ({"mask": "documents", "group": 16}, "causal, grouped queries"),
    "gpt2": ({"mask": "documents"}, "causal, scale by layer"),
    "bert": ({"mask": "documents"}, "full"),
    "modernbert": ({"mask": "documents"}, "full, two-sided windows"),
}


def run() -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("family", "tasks", "attention", "backends (eval)", "backends (training)")
    for kind, (_, _, tasks) in FAMILIES.items():
        needs, text = NEEDS[kind]
        table.add_row(kind, ", ".join(tasks), text, *(accepting({**needs, "needs_grad": g}) for g in (False, True)))
    Console().print(table)


def accepting(needs: dict) -> str:
    """Names of the backends that accept packed sequences with these needs on the CPU."""
    spec = AttentionSpec(**needs)
    return ", ".join(name for name, b in backends().items() if not b.why_not(spec) and ":" not in name)
