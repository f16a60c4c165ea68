"""Configurations: dataclasses with Hugging Face's field names, read from and written to config.json."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from headway.errors import CheckpointError


@dataclass(kw_only=True)
class Config:
    """Fields that every model has. Unknown keys of a config.json are kept in `extra` and written back."""

    model_type: ClassVar[str] = ""
    aliases: ClassVar[dict[str, str]] = {}  # our field -> the name in config.json, where they differ

    vocab_size: int = 32000
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    initializer_range: float = 0.02
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    tie_word_embeddings: bool = True
    problem_type: str | None = None
    id2label: dict[int, str] | None = None
    label2id: dict[str, int] | None = None
    architectures: list[str] | None = None
    classifier_dropout: float | None = None
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def num_labels(self) -> int:
        return 2 if self.id2label is None else len(self.id2label)

    @num_labels.setter
    def num_labels(self, n: int) -> None:
        if n != self.num_labels or self.id2label is None:
            self.id2label = {i: f"LABEL_{i}" for i in range(n)}
            self.label2id = {name: i for i, name in self.id2label.items()}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """From the contents of a config.json. Raises CheckpointError where a value has no meaning for this model."""
        names = {f.name for f in dataclasses.fields(cls)} - {"extra"}
        values = dict(values)
        count = values.pop("num_labels", None)
        for ours, theirs in cls.aliases.items():
            if theirs in values:
                values[ours] = values.pop(theirs)
        cls.upgrade(values)
        known = {k: v for k, v in values.items() if k in names}
        if known.get("id2label"):
            known["id2label"] = {int(k): v for k, v in known["id2label"].items()}
        config = cls(**known, extra={k: v for k, v in values.items() if k not in names and k != "model_type"})
        if count is not None:
            config.num_labels = count
        config.validate()
        return config

    @classmethod
    def upgrade(cls, values: dict[str, Any]) -> None:
        """Brings older spellings of a config.json up to date, in place."""

    def validate(self) -> None:
        if self.hidden_size % self.num_attention_heads and getattr(self, "head_dim", None) is None:
            raise CheckpointError(
                f"hidden_size {self.hidden_size} is not a multiple of num_attention_heads {self.num_attention_heads}, "
                "and the config gives no head_dim"
            )

    def to_dict(self) -> dict[str, Any]:
        """What goes into a config.json."""
        own = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "extra"}
        for name in ("id2label", "label2id"):
            if own[name] is None:
                del own[name]
        own = {self.aliases.get(name, name): value for name, value in own.items()}
        out = {**self.extra, **own, "model_type": self.model_type}
        if out.get("id2label"):
            out["id2label"] = {str(k): v for k, v in out["id2label"].items()}
        return out


def upgrade_rope(values: dict[str, Any], theta: float = 10000.0) -> None:
    """Older configs give rope_theta and rope_scaling; newer ones rope_parameters with both."""
    rope = values.pop("rope_parameters", None)
    scaling = values.pop("rope_scaling", None)
    base = values.pop("rope_theta", None)
    rope = dict(rope or scaling or {})
    if any(isinstance(v, dict) for v in rope.values()):  # one entry per layer type
        values["rope_parameters"] = rope
        return
    if "type" in rope:
        rope.setdefault("rope_type", rope.pop("type"))
    if rope.get("rope_type") == "su":  # what longrope was called at first
        rope["rope_type"] = "longrope"
    rope.setdefault("rope_type", "default")
    rope.setdefault("rope_theta", base if base is not None else theta)
    for key in ("original_max_position_embeddings", "partial_rotary_factor"):
        if values.get(key) is not None:
            rope.setdefault(key, values[key])
    values["rope_parameters"] = rope
