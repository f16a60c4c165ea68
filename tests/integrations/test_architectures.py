"""`headway` equals `eager`, or refuses; it never differs."""

from __future__ import annotations

import pytest

from tests.integrations.architectures import ARCHITECTURES
from tests.integrations.sweep import DIFFERS, MISSING, PASS, REFUSED, UNTOUCHED, build, distance, examine, inputs_of, results

BY_NAME = {a.name: a for a in ARCHITECTURES}
DEFAULT = ("Llama", "Gemma2", "GptOss", "Llama4Text", "DeepseekV3", "ModernBert", "T5", "Bart", "ViT", "Whisper")
OWN_CODE = {
    "GPTNeoXJapanese", "Bloom", "Falcon", "GPTNeo", "XGLM", "Mpt", "MPNet", "MegatronBert", "RoFormer", "DebertaV2", "ConvBert",
    "Luke", "Longformer", "LED", "Data2VecVision", "WavLM",
}  # fmt: skip


@pytest.mark.parametrize("name", DEFAULT)
def test_equals_eager(name):
    outcome = examine(BY_NAME[name])
    assert outcome.status == PASS, outcome
    if BY_NAME[name].kind == "decoder":
        assert outcome.note == "generates the same"


@pytest.mark.slow
def test_the_whole_list():
    outcomes = {a.name: examine(a) for a in ARCHITECTURES}
    by_status = {s: {n for n, o in outcomes.items() if o.status == s} for s in (PASS, REFUSED, UNTOUCHED, DIFFERS, MISSING)}
    assert not by_status[DIFFERS], [outcomes[n] for n in by_status[DIFFERS]]
    assert not by_status[MISSING], [outcomes[n] for n in by_status[MISSING]]
    assert by_status[UNTOUCHED] == OWN_CODE
    assert len(by_status[PASS]) >= 100


@pytest.mark.parametrize("change", [{"sliding_window": 6}, {"attn_logit_softcapping": 1.2}, {"query_pre_attn_scalar": 200}])
def test_the_comparison_sees_a_changed_model(change):
    """A window one wider, another soft cap or scale are far outside of the tolerance."""
    from dataclasses import replace

    a = BY_NAME["Gemma2"]
    x, real = inputs_of(a)[0]
    want = results(build(a), "eager", x, real)
    got = results(build(replace(a, config=a.config | change)), "headway", x, real)
    assert distance(got, want) > 2e-4
