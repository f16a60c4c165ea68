"""The sandbox that chat templates run in. Jinja's hides Python; this one also bounds what a template may do and make.

One budget for a rendering: a call or a turn of a loop costs `STEP`, a list `ITEM` for each of its items, a text its
length. A template is stopped before it makes a value that the budget cannot pay for, so neither time nor memory runs away.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from jinja2 import nodes
from jinja2.runtime import LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

BUDGET, STEP, ITEM = 400_000_000, 2000, 100
BITS = 10_000  # of a whole number
WIDEST = 1000  # for functions that pad, indent or cut
PADDING = {"center", "indent", "batch", "slice", "wordwrap", "tojson", "ljust", "rjust", "zfill", "expandtabs"}
WIDE_FORMAT = re.compile(r"\d{4}|\*|\{[^{}]*\{")  # a width of four digits, or one that is itself a value


class Sandbox(ImmutableSandboxedEnvironment):
    """An environment for one rendering. What goes beyond its budget raises OverflowError."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, **options: Any):
        super().__init__(finalize=self.weighed, **options)
        self.left = BUDGET
        del self.globals["lipsum"]
        for name, function in list(self.filters.items()):
            self.add_filter(name, function)
        self.filters.update(_items=self.items, _joined=self.joined)

    def spend(self, cost: int) -> None:
        self.left -= cost
        if self.left < 0:
            raise OverflowError("it does or makes too much")

    def weighed(self, value: Any) -> Any:
        """The value, its size as text paid for."""
        if isinstance(value, str):
            self.spend(len(value))
        elif isinstance(value, (list, tuple, dict)):
            for one in (*value, *value.values()) if isinstance(value, dict) else value:
                self.spend(ITEM)
                self.weighed(one)
        return value

    def items(self, values: Iterable[Any]) -> Iterator[Any]:
        """What a loop runs over."""
        for value in values:
            self.spend(STEP)
            yield value

    def joined(self, values: list[Any]) -> str:
        """What `~` makes of its operands."""
        return "".join(str(self.weighed(v)) for v in values)

    def add_filter(self, name: str, function: Callable) -> None:
        @functools.wraps(function)
        def run(*args: Any, **options: Any) -> Any:
            args = self.checked(name, args, options)
            return self.weighed(function(*args, **options))

        self.filters[name] = run

    def checked(self, name: str, args: tuple, options: dict[str, Any]) -> tuple:
        """The arguments, once it is sure that what a function makes of them is not far larger than they are."""
        self.spend(STEP)
        args = tuple(list(a) if isinstance(a, Iterator) else a for a in args) if name == "join" else args
        given = [self.weighed(a) for a in (*args, *options.values())]
        texts = [a for a in given if isinstance(a, str)]
        wide = name in PADDING and any(isinstance(a, int) and a > WIDEST for a in given)
        if wide or name in ("format", "format_map") and WIDE_FORMAT.search(texts[0]):
            raise OverflowError(f"'{name}' would make too large a value")
        if name == "replace" and len(texts) > 2:
            self.spend(texts[0].count(texts[1]) * len(texts[2]))
        if name == "join":
            self.spend(max(map(len, texts), default=0) * sum(len(a) for a in args if isinstance(a, (str, list, tuple, dict))))
        return args

    def call(self, context: Any, function: Any, *args: Any, **options: Any) -> Any:  # type: ignore[override]
        self.spend(STEP)
        method = getattr(function, "__wrapped__", function)  # Jinja wraps str.format
        owner = getattr(method, "__self__", None)
        if isinstance(owner, str):
            args = self.checked(method.__name__, (owner, *args), options)[1:]
        elif isinstance(function, LoopContext):
            args = tuple(self.items(a) for a in args)
        found = super().call(context, function, *args, **options)
        return self.weighed(found) if isinstance(found, str) else found

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "%" and isinstance(left, str):
            self.checked("format", (left, right), {})
        elif operator == "*" and not (isinstance(left, (int, float)) and isinstance(right, (int, float))):
            times, repeated = (left, right) if isinstance(left, int) else (right, left)
            self.spend(len(repeated) * max(times, 0))
        elif operator in ("*", "**") and isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() + right.bit_length() if operator == "*" else left.bit_length() * abs(right)
            if bits > BITS:
                raise OverflowError(f"'{operator}' would make too large a number")
        found = super().call_binop(context, operator, left, right)
        self.spend(STEP + (len(found) if isinstance(found, (str, list, tuple)) else 0))
        return found

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        return _Counted().visit(super()._parse(source, name, filename))


class _Counted(NodeTransformer):
    """Sends through the sandbox what loops run over, operands of `~`, and texts set by blocks."""

    def visit_For(self, node: nodes.For) -> nodes.For:
        self.generic_visit(node)
        node.iter = _through(node.iter, "_items")
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Filter:
        self.generic_visit(node)
        return _through(nodes.List(node.nodes, lineno=node.lineno), "_joined")

    def visit_AssignBlock(self, node: nodes.AssignBlock) -> nodes.AssignBlock:
        self.generic_visit(node)
        node.filter = _through(node.filter, "string")
        return node


def _through(node: Any, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=getattr(node, "lineno", None))
