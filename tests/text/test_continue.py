"""Continuing the last message of a chat, against transformers."""

from __future__ import annotations

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from headway.text.chat import render

PLAIN = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>\n{% endfor %}"
TRIMMED = PLAIN.replace("m.content", "m.content | trim")
PARTS = PLAIN.replace("m.content", "m.content if m.content is string else m.content | map(attribute='text') | join")


@pytest.mark.parametrize("template", [PLAIN, TRIMMED, PARTS])
@pytest.mark.parametrize("content", ["yes", "yes ", " The answer:\n", "q"])
def test_spaces_are_kept_where_the_template_keeps_them(template, content):
    chat = [{"role": "user", "content": "q"}, {"role": "assistant", "content": content}]
    want, _ = render_jinja_template([chat], chat_template=template, continue_final_message=True)
    assert render(template, chat, continue_final_message=True) == want[0]


def test_the_last_text_of_a_message_in_parts():
    parts = [{"type": "text", "text": "first "}, {"type": "image"}, {"type": "text", "text": "second "}]
    text = render(PARTS, [{"role": "assistant", "content": parts}], continue_final_message=True)
    assert text == "<assistant>first second "


def test_variables_of_the_caller_win_over_special_tokens():
    assert render("{{ bos_token }}", [{"role": "user"}], special={"bos_token": "a"}, bos_token="b") == "b"
