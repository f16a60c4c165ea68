"""The sandbox that chat templates run in. Jinja's hides Python; this one also bounds what a template may do and make.

One budget for a rendering: every loop item and every call costs `STEP`, every text or list that is made its length. A
template that would need more is stopped before it makes the value, so neither time nor memory runs away.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from jinja2 import nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

BUDGET, STEP = 100_000_000, 100
WIDEST = 1000  # for functions that pad, indent or cut: no template needs more
PADDING = {"center", "indent", "batch", "slice", "wordwrap", "tojson", "ljust", "rjust", "zfill", "expandtabs"}
WIDE_FORMAT = re.compile(r"\d{4}|\*|\{[^{}]*\{")  # a width of four digits, or one that is itself a value


class Sandbox(ImmutableSandboxedEnvironment):
    """An environment for one rendering. What goes beyond its budget raises OverflowError."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, **options: Any):
        super().__init__(**options)
        self.left = BUDGET
        for name in ("lipsum", "cycler"):
            self.globals.pop(name, None)
        for name, function in list(self.filters.items()):
            self.filters[name] = self.guarded(name, function)
        self.filters.update(_items=self.items, _joined=self.joined)

    def spend(self, cost: int) -> None:
        self.left -= cost
        if self.left < 0:
            raise OverflowError("it does or makes too much")

    def paid(self, value: Any) -> Any:
        """A value that was made, its size paid for."""
        self.spend(STEP + (len(value) if isinstance(value, (str, list, tuple)) else 0))
        return value

    def items(self, values: Iterable[Any]) -> Iterator[Any]:
        """What a loop runs over."""
        for value in values:
            self.spend(STEP)
            yield value

    def joined(self, values: list[Any]) -> str:
        """What `~` makes of its operands."""
        return self.paid("".join(map(str, values)))

    def guarded(self, name: str, function: Callable) -> Callable:
        @functools.wraps(function)
        def run(*args: Any, **options: Any) -> Any:
            self.check(name, args, options)
            return self.paid(function(*args, **options))

        return run

    def check(self, name: str, args: tuple, options: dict[str, Any]) -> None:
        """Stops functions whose result may be far larger than what they are given."""
        if name in PADDING and any(isinstance(a, int) and a > WIDEST for a in (*args, *options.values())):
            raise OverflowError(f"'{name}' would make too large a value")
        texts = [a for a in (*args, *options.values()) if isinstance(a, str)]
        if name in ("format", "format_map") and texts and WIDE_FORMAT.search(texts[0]):
            raise OverflowError(f"'{name}' would make too large a value")
        if name == "replace" and len(texts) > 2:
            self.spend(texts[0].count(texts[1]) * len(texts[2]))
        if name == "join":
            lists = [a for a in args if isinstance(a, (list, tuple))]
            self.spend(sum(len(str(v)) + max(map(len, texts), default=0) for one in lists for v in one))

    def call(self, context: Any, function: Any, *args: Any, **options: Any) -> Any:  # type: ignore[override]
        owner = getattr(function, "__self__", None)
        if isinstance(owner, str):
            self.check(function.__name__, (owner, *args), options)
        return self.paid(super().call(context, function, *args, **options))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        numbers = isinstance(left, (int, float)) and isinstance(right, (int, float))
        if operator == "*" and not numbers:
            self.spend(max(0, (left if isinstance(left, int) else len(left)) * (right if isinstance(right, int) else len(right))))
        elif operator == "**" and abs(right) > 64 or operator == "%" and isinstance(left, str) and WIDE_FORMAT.search(left):
            raise OverflowError(f"'{operator}' would make too large a value")
        return self.paid(super().call_binop(context, operator, left, right))

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        return _Counted().visit(super()._parse(source, name, filename))


class _Counted(NodeTransformer):
    """Sends what loops run over, and the operands of `~`, through the sandbox."""

    def visit_For(self, node: nodes.For) -> nodes.For:
        self.generic_visit(node)
        node.iter = nodes.Filter(node.iter, "_items", [], [], None, None, lineno=node.lineno)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Filter:
        self.generic_visit(node)
        listed = nodes.List(node.nodes, "load", lineno=node.lineno)
        return nodes.Filter(listed, "_joined", [], [], None, None, lineno=node.lineno)

    def visit_AssignBlock(self, node: nodes.AssignBlock) -> nodes.AssignBlock:
        self.generic_visit(node)
        node.filter = nodes.Filter(node.filter, "string", [], [], None, None, lineno=node.lineno)
        return node
