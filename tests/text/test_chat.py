"""Chat templates: equal to transformers' rendering, and harmless."""

from __future__ import annotations

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from headway.errors import TokenizerError
from headway.text.chat import render

CHATML = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] | trim + eos }}\n{% endfor %}"
    "{%- if tools %}{{ tools | tojson(indent=2) }}{% endif %}{% if documents %}{{ documents | tojson }}{% endif %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
MARKED = (
    "{% for m in messages %}{% generation %}{{ m.content }};{% endgeneration %}"
    "{% if loop.last %}{% break %}{% endif %}{% endfor %}"
)
CHAT = [{"role": "user", "content": " a < b & 'c' ü "}, {"role": "assistant", "content": "yes"}]
TOOL = {
    "type": "function",
    "function": {"name": "f<>", "description": "it's", "parameters": {"type": "object", "properties": {}}},
}


@pytest.mark.parametrize("template", [CHATML, MARKED])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"add_generation_prompt": True},
        {"continue_final_message": True},
        {"tools": [TOOL]},
        {"documents": [{"title": "t<"}]},
    ],
    ids=str,
)
def test_equal_to_transformers(template, options):
    options = {"add_generation_prompt": False, "eos": "</s>", **options}
    want, _ = render_jinja_template([CHAT], chat_template=template, **options)
    assert render(template, CHAT, **options) == want[0]


def test_real_template(weights):
    from headway import load_tokenizer

    ours = load_tokenizer(weights / "smollm2-135m")
    text = ours.chat([{"role": "user", "content": "Hi"}])
    assert text.startswith("<|im_start|>system\n") and text.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ cycler.__init__.__globals__.os.system('true') }}",
        "{% for i in range(10**9) %}x{% endfor %}",
        "{% for i in range(99999) %}{% for j in range(99999) %}x{% endfor %}{% endfor %}",
        "{{ 'a' * 10**12 }}",
        "{{ [1] * 10**12 }}",
        "{{ 9 ** (9 ** 9) }}",
        "{{ '%99999999999d' % 1 }}",
        "{% include 'etc/passwd' %}",
        "{{ raise_exception('roles must alternate') }}",
        "{{ missing.attribute }}",
        "{% if %}",
    ],
)
def test_hostile_and_broken_templates_are_refused(template):
    with pytest.raises(TokenizerError, match="chat template"):
        render(template, CHAT)


def test_what_the_sandbox_hides_renders_as_nothing():
    assert render("[{{ raise_exception.__globals__ }}{{ messages.__class__ }}]", CHAT) == "[]"


def test_messages_that_are_none():
    with pytest.raises(TokenizerError, match="at least one"):
        render(CHATML, [])
    with pytest.raises(TokenizerError, match="role"):
        render(CHATML, ["hello"])
    with pytest.raises(TokenizerError, match="cannot be continued"):
        render("nothing", CHAT, continue_final_message=True)
