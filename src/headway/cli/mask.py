"""`headway mask`: draws a mask expression."""

from __future__ import annotations

import ast
from pathlib import Path

from headway.attention import masks
from headway.errors import InputError

NAMES = (
    "causal",
    "window",
    "sliding",
    "sliding_bidirectional",
    "prefix",
    "chunked",
    "documents",
    "lengths",
    "padding",
    "dense",
)


def run(expression: str, q_len: int, kv_len: int | None, png: Path | None) -> None:
    built = parse(expression)
    kv_len = q_len if kv_len is None else kv_len
    try:
        print(built.draw(q_len, kv_len))
        if png is not None:
            from headway.attention.masks.draw import draw_png

            draw_png(built, q_len, kv_len, png)
    except (ValueError, TypeError) as error:
        raise InputError(str(error)) from None
    except OSError as error:
        raise InputError(f"cannot write {png}: {error.strerror}") from None


def parse(expression: str) -> masks.Mask:
    """A mask from text: calls of the constructors with numbers and lists, under & | ~. Nothing is evaluated."""
    try:
        tree = ast.parse(expression, mode="eval").body
    except SyntaxError as error:
        raise InputError(f"{expression!r} is no expression ({error.msg})") from None
    return _build(tree)


def _build(node: ast.expr) -> masks.Mask:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitAnd):
        return _build(node.left) & _build(node.right)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return _build(node.left) | _build(node.right)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Invert):
        return ~_build(node.operand)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in NAMES:
        return _call(node)
    raise InputError(f"'{ast.unparse(node)}' is no mask; masks are {', '.join(n + '()' for n in NAMES)} under & | ~")


def _call(node: ast.Call) -> masks.Mask:
    import torch

    name = node.func.id  # type: ignore[attr-defined]

    def value(arg: ast.expr):
        try:
            found = ast.literal_eval(arg)
        except ValueError:
            raise InputError(f"'{ast.unparse(arg)}' is no number or list") from None
        if not isinstance(found, list):
            return found
        t = torch.tensor(found)
        if name == "padding":
            return t.bool() if t.dim() == 2 else t.bool()[None]
        return t.bool() if name == "dense" else t

    try:
        return getattr(masks, name)(*(value(a) for a in node.args), **{str(k.arg): value(k.value) for k in node.keywords})
    except (ValueError, TypeError) as error:
        raise InputError(f"{ast.unparse(node)}: {error}") from None
