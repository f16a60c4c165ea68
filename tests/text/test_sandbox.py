"""Chat templates that would use up time or memory are stopped before they do; ordinary ones are not."""

from __future__ import annotations

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from headway.errors import TokenizerError
from headway.text.chat import render

CHAT = [{"role": "user", "content": "hello"}]
DOUBLE = "{% set n = namespace(a='xx', l=['x']) %}{% for i in range(90) %}{% set n.a = STEP %}{% endfor %}{{ n.a | length }}"
SELF = "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}"


@pytest.mark.parametrize(
    "template",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% for i in range(99999) recursive %}{{ loop(range(99999)) if loop.depth < 3 }}{% endfor %}",
        SELF,
        DOUBLE.replace("STEP", "n.a ~ n.a"),
        DOUBLE.replace("STEP", "n.a + n.a"),
        DOUBLE.replace("STEP", "[n.a, n.a] | join"),
        DOUBLE.replace("STEP", "(n.a, n.a) | join(n.a)"),
        DOUBLE.replace("STEP", "n.a.join(n.a)"),
        DOUBLE.replace("STEP", "n.a.replace('x', n.a)"),
        DOUBLE.replace("STEP", "n.a | replace('x', n.a)"),
        DOUBLE.replace("{% set n.a = STEP %}", "{% set t %}{{ n.a }}{{ n.a }}{% endset %}{% set n.a = t %}"),
        DOUBLE.replace("STEP", "[n.a, n.a]").replace("n.a | length", "n.a"),
        DOUBLE.replace("STEP", "[n.a, n.a]").replace("length", "string"),
        DOUBLE.replace("STEP", "[n.a, n.a]").replace("length", "tojson"),
        DOUBLE.replace("STEP", "{'a': n.a, 'b': n.a}").replace("n.a | length", "n.a"),
        DOUBLE.replace("'xx'", "3").replace("STEP", "n.a * n.a").replace("length", "abs"),
        "{{ [['x' * 100000] * 100000] | map('string') | list | length }}",
        "{{ (['x' * 100000] * 100000) | map('upper') | join | length }}",
        "{{ 10 ** (10 ** 10) }}",
        "{{ 'x' * 10 ** 10 }}",
        "{{ [1] * 10 ** 10 }}",
        "{{ 'x' | center(10 ** 10) }}",
        "{{ 'x\ny' | indent(10 ** 10) }}",
        "{{ messages | tojson(indent=10 ** 10) }}",
        "{{ [1] | batch(10 ** 10, 1) | list | length }}",
        "{{ 'x'.ljust(10 ** 10) }}",
        "{{ 'x'.zfill(10 ** 10) }}",
        "{{ '{:>9999999999}'.format(1) }}",
        "{{ '{:>{}}'.format(1, 10 ** 10) }}",
        "{{ '%9999999999d' % 1 }}",
        "{{ '%*d' | format(10 ** 10, 1) }}",
    ],
)
def test_what_runs_away_is_stopped(template):
    with pytest.raises(TokenizerError, match="chat template fails: .*(too much|too large)"):
        render(template, CHAT)


def test_deep_templates_are_refused():
    for template in ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "{{ " + "-" * 5000 + "1 }}"):
        with pytest.raises(TokenizerError):
            render(template, CHAT)


@pytest.mark.parametrize(
    "template",
    [
        "{{ '%s: %03d' % ('a', 7) }} {{ '%.2f' | format(1.5) }} {{ '{:>5}|{}'.format('a', 1) }}",
        "{% for m in messages %}{{ loop.index }}/{{ loop.length }}{{ ',' if not loop.last }}{{ loop.first }}{% endfor %}",
        "{% for m in messages %}{{ loop.previtem is defined }}{{ loop.nextitem is defined }}{% endfor %}",
        "{% for k, v in messages[0].items() if v != 'user' %}{{ k ~ '=' ~ v ~ 1 ~ none }}{% else %}none{% endfor %}",
        "{% for m in messages recursive %}{{ m.role }}{{ loop(m.sub) if m.sub }}{% endfor %}",
        "{% set x %}{{ messages[0].content }}!{% endset %}{{ x | upper }}",
        "{% set y | trim %} z {% endset %}{{ y }}",
        "{{ messages | map(attribute='content') | join(', ') }}",
        "{{ messages | selectattr('role', 'equalto', 'user') | list | length }}",
        "{{ messages | tojson(indent=2) }}{{ messages[0] | tojson }}{{ 'a-b-c'.split('-') | last }}{{ [1, 2] + [3] }}",
        "{% macro f(a, b=2) %}[{{ a }}{{ b }}{{ caller() if caller }}]{% endmacro %}{{ f(1) }}",
        "{% macro f(a, b=2) %}[{{ a }}{{ b }}{{ caller() }}]{% endmacro %}{% call f(2, b=3) %}in{% endcall %}",
        "{{ 'abcabc' | replace('b', 'xx') }}{{ 'abab'.replace('a', '', 1) }}|",
        "{{ 'a' | center(5) }}|{{ 'a\nb' | indent(2) }}{{ 2 ** 10 }}",
        "{% for i in range(3) %}{{ i }}{% if i == 1 %}{% break %}{% endif %}{% endfor %}",
        "{% for x in missing %}{% else %}-{% endfor %}",
        "{{ 'x' * 3 ~ undefined_one }}{{ messages[-1]['content'][1:] }}{{ 7 % 4 }}{{ messages[::-1] | length }}",
    ],
)
def test_ordinary_templates_render_as_in_transformers(template):
    chat = [
        {"role": "user", "content": "hello <b>", "sub": [{"role": "x"}, {"role": "y"}]},
        {"role": "assistant", "content": "ü"},
    ]
    want, _ = render_jinja_template([chat], chat_template=template, add_generation_prompt=False)
    assert render(template, chat, add_generation_prompt=False) == want[0]


def test_a_long_conversation_is_no_attack():
    chat = [{"role": "user", "content": "words " * 2000}] * 500
    text = render("{% for m in messages %}{{ '<' + m.role + '>' + m['content'] | trim ~ '\n' }}{% endfor %}", chat)
    assert len(text) == 500 * (len("<user>") + 2000 * 6)
