"""Choosing the backend of a live model, as a whole or by layer."""

from __future__ import annotations

from collections.abc import Iterable
from weakref import ref

from torch import nn

from headway.attention.registry import get_backend


class AttentionSwitch:
    """`model.attention`: which backend the model's attention layers use.

    A layer is any sub-module with an attribute `attention_backend` (None = the model's choice, "auto" by default);
    `layer_idx` gives its number.
    """

    def __init__(self, model: nn.Module):
        self._model = ref(model)  # the layers hold the choice, so that copies of a model choose for themselves

    def layers(self) -> dict[int, nn.Module]:
        """The attention layers by number, in order."""
        model = self._model()
        assert model is not None, "the model of this switch is gone"
        found = [m for m in model.modules() if hasattr(m, "attention_backend")]
        return {getattr(m, "layer_idx", i): m for i, m in enumerate(found)}

    def use(self, backend: str, layers: Iterable[int] | None = None) -> None:
        """From the next call on, all attention layers, or those numbered, use `backend` ("auto" or a registered name).

        Raises ValueError, and changes nothing, for an unknown backend or layer.
        """
        if backend != "auto":
            get_backend(backend)
        known = self.layers()
        chosen = list(known) if layers is None else list(layers)
        missing = [i for i in chosen if i not in known]
        if missing:
            raise ValueError(f"the model has no attention layers {missing}; it has 0 to {len(known) - 1}")
        for i in chosen:
            setattr(known[i], "attention_backend", None if backend == "auto" else backend)  # noqa: B010

    def current(self) -> dict[int, str]:
        """The backend that each layer asks for, "auto" where it leaves the choice open."""
        return {i: str(m.attention_backend or "auto") for i, m in self.layers().items()}

    def explain(self, batch=None) -> str:
        """What each layer runs and why. `batch` is a dict of forward arguments; without it, what is asked for is listed.

        With a batch, one forward pass without gradients runs and the plan of every attention call in it is reported,
        equal ones together.
        """
        if batch is None:
            return "\n".join(f"layer {i}: {name}" for i, name in self.current().items())
        import torch

        from headway.attention.record import record_plans

        with record_plans() as plans, torch.no_grad():
            self._model()(**batch)  # type: ignore[misc]
        groups: dict[str, list[int]] = {}
        for i, (plan, shape) in enumerate(plans):
            groups.setdefault(plan.explain(shape), []).append(i)
        return "\n".join(f"calls {_ranges(numbers)}\n{text}" for text, numbers in groups.items())


def _ranges(numbers: list[int]) -> str:
    out, start, last = [], numbers[0], numbers[0]
    for n in [*numbers[1:], None]:
        if n is not None and n == last + 1:
            last = n
            continue
        out.append(str(start) if start == last else f"{start}-{last}")
        if n is not None:
            start = last = n
    return ", ".join(out)
