"""Real GGUF files and MiniLM against transformers: the same weights, the same logits; conversion to folders."""

from __future__ import annotations

import pytest
import torch
import transformers

from headway import load, load_tokenizer
from headway.checkpoints.convert import convert_gguf
from headway.errors import CheckpointError

pytestmark = pytest.mark.real

GGUF = {"smollm2-135m": "SmolLM2-135M-Instruct.Q4_1.gguf", "gemma3-270m": "gemma-3-270m-q4_k_m.gguf"}
TEXT = "The capital of France is Paris, and the capital of Germany is"


@pytest.mark.parametrize("name", list(GGUF))
def test_gguf_equals_transformers(name, weights):
    theirs = transformers.AutoModelForCausalLM.from_pretrained(weights / name, gguf_file=GGUF[name], dtype=torch.float32)
    ours, tokenizer = load(weights / name / GGUF[name]), load_tokenizer(weights / name)
    want = theirs.state_dict()
    assert set(ours.state_dict()) == set(want)
    assert all(torch.equal(t, want[n]) for n, t in ours.state_dict().items())
    inputs = tokenizer([TEXT, "Hi"], padding_side="left")
    with torch.no_grad():
        found, expected = ours(**inputs).logits, theirs(**inputs).logits
    valid = inputs["attention_mask"].bool()
    torch.testing.assert_close(found[valid], expected[valid], atol=2e-4, rtol=1e-4)
    assert "Berlin" in tokenizer.decode([int(found[0, -1].argmax())])


@pytest.mark.parametrize("name", ["smollm2-135m", pytest.param("gemma3-270m", marks=pytest.mark.slow)])
def test_converted_gguf_is_read_by_transformers(name, weights, tmp_path):
    ours, tokenizer = load(weights / name / GGUF[name]), load_tokenizer(weights / name)
    want = ours.state_dict()
    convert_gguf(weights / name / GGUF[name], tmp_path / "out")
    peer, report = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert type(peer).__name__ == type(ours).__name__
    assert not report["missing_keys"] and not report["unexpected_keys"]
    assert all(torch.equal(t, want[n]) for n, t in peer.state_dict().items())
    peer_tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert peer_tokenizer(TEXT)["input_ids"] == tokenizer.encode([TEXT])[0].input_ids


def test_minilm_equals_transformers(weights):
    ours, theirs = load(weights / "minilm"), transformers.AutoModel.from_pretrained(weights / "minilm").eval()
    inputs = load_tokenizer(weights / "minilm")([TEXT, "Hi"])
    with torch.no_grad():
        found, expected = ours(**inputs), theirs(**inputs)
    valid = inputs["attention_mask"].bool()
    torch.testing.assert_close(found.last_hidden_state[valid], expected.last_hidden_state[valid], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found.pooler_output, expected.pooler_output, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("part", [2, 1000, 0.02, 0.5, 0.9999])
def test_gguf_cut_short(part, weights, tmp_path):
    whole = (weights / "smollm2-135m" / GGUF["smollm2-135m"]).read_bytes()
    (tmp_path / "cut.gguf").write_bytes(whole[: part if isinstance(part, int) else int(len(whole) * part)])
    for read in (load, load_tokenizer, lambda ref: convert_gguf(ref, tmp_path / "out")):
        with pytest.raises(CheckpointError, match="cut short or damaged"):
            read(tmp_path / "cut.gguf")
    assert [p.name for p in tmp_path.iterdir()] == ["cut.gguf"]
