"""Chat templates, rendered in Jinja's sandbox: a template comes with a checkpoint and is not to be trusted."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from headway.errors import TokenizerError


def render(
    template: str,
    messages: Sequence[dict[str, Any]],
    *,
    special: dict[str, str] | None = None,
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
    tools: Sequence[dict[str, Any]] | None = None,
    documents: Sequence[dict[str, Any]] | None = None,
    **variables: Any,
) -> str:
    """The messages as text. messages: dicts with "role" and "content".

    add_generation_prompt: end with what opens the assistant's turn. continue_final_message: end within the last message
    instead, for the model to go on with it. Raises TokenizerError if the template fails or does what it must not.
    """
    if continue_final_message and add_generation_prompt:
        add_generation_prompt = False
    _check(messages)
    compiled = _compile(template)
    try:
        pieces = compiled.generate(
            messages=list(messages),
            tools=list(tools) if tools is not None else None,
            documents=list(documents) if documents is not None else None,
            add_generation_prompt=add_generation_prompt,
            **{**(special or {}), **variables},
        )
        text = "".join(pieces)
    except Exception as error:
        raise TokenizerError(f"the chat template fails: {type(error).__name__}: {error}") from None
    return _up_to_last(text, messages) if continue_final_message else text


def _up_to_last(text: str, messages: Sequence[dict[str, Any]]) -> str:
    """The text cut at the end of the last message's words, spaces at their end included if the template keeps them."""
    content = messages[-1].get("content")
    if isinstance(content, list):  # parts, the last text of which is continued
        content = next((p["text"] for p in reversed(content) if isinstance(p, dict) and isinstance(p.get("text"), str)), None)
    words = content.strip() if isinstance(content, str) else ""
    at = text.rfind(words) if words else -1
    if at < 0:
        raise TokenizerError("the last message has no text that the chat template keeps; it cannot be continued")
    spaced = str(content).lstrip()
    return text[: at + len(spaced if text.startswith(spaced, at) else words)]


def _check(messages: Sequence[dict[str, Any]]) -> None:
    if not messages:
        raise TokenizerError("a chat needs at least one message")
    for m in messages:
        if not isinstance(m, dict) or "role" not in m:
            raise TokenizerError(f"each message is a dict with 'role' and 'content', {m!r} was given")


def _compile(template: str):
    from jinja2 import TemplateError

    from headway.text.sandbox import Sandbox

    def raise_exception(message: str):
        raise TemplateError(message)

    def tojson(value: Any, ensure_ascii=False, indent=None, separators=None, sort_keys=False) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    environment = Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _generation_tag()])
    environment.add_filter("tojson", tojson)
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    try:
        return environment.from_string(template)
    except (TemplateError, RecursionError, OverflowError, TypeError, ValueError) as error:
        raise TokenizerError(f"the chat template is no valid Jinja: {error}") from None


def _generation_tag():
    """`{% generation %} ... {% endgeneration %}` marks the assistant's words; rendering keeps them as they are."""
    from jinja2 import nodes
    from jinja2.ext import Extension

    class Generation(Extension):
        tags = {"generation"}

        def parse(self, parser):
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body).set_lineno(line)

    return Generation
