"""Weights that are stored in unusual ways: tied ones twice or once under either name, kinds that are no plain numbers."""

from __future__ import annotations

import json

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from headway import load
from headway.errors import CheckpointError, HeadwayError

TINY = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4}
EMBED, HEAD, UP = "model.embed_tokens.weight", "lm_head.weight", "model.layers.0.mlp.up_proj.weight"
IDS = torch.arange(3, 12)[None]


@pytest.fixture
def folder(tmp_path):
    config = transformers.LlamaConfig(**TINY, num_key_value_heads=2, tie_word_embeddings=True)
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path / "m")
    return tmp_path / "m"


def _restore(folder, change):
    state = load_file(folder / "model.safetensors")
    change(state)
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    return state


def _config(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_a_tied_pair_under_its_other_name(folder):
    def rename(state):
        state[HEAD] = state.pop(EMBED)

    stored = _restore(folder, rename)
    ours = load(folder)
    assert torch.equal(ours.model.embed_tokens.weight, stored[HEAD]) and ours.lm_head.weight is ours.model.embed_tokens.weight


def test_a_tied_pair_that_differs_is_untied_as_in_transformers(folder, tmp_path):
    stored = _restore(folder, lambda state: state.update({HEAD: torch.randn(64, 32)}))
    with pytest.warns(UserWarning, match="not tied"):
        ours = load(folder)
    theirs = transformers.LlamaForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        torch.testing.assert_close(ours(IDS).logits, theirs(IDS).logits, atol=1e-5, rtol=1e-5)
    ours.save_pretrained(tmp_path / "again")
    again = load(tmp_path / "again")
    assert torch.equal(again.lm_head.weight, stored[HEAD]) and torch.equal(again.model.embed_tokens.weight, stored[EMBED])


def test_a_tied_pair_stored_twice_stays_tied(folder):
    _restore(folder, lambda state: state.update({HEAD: state[EMBED].clone()}))
    ours = load(folder)
    assert ours.lm_head.weight is ours.model.embed_tokens.weight and ours.config.tie_word_embeddings


def test_an_untied_bert_keeps_its_shared_bias(tmp_path):
    theirs = transformers.BertForMaskedLM(transformers.BertConfig(**TINY, max_position_embeddings=32)).eval()
    theirs.save_pretrained(tmp_path)
    name = "cls.predictions.decoder.weight"
    _restore(tmp_path, lambda state: state.update({name: torch.randn(64, 32), "cls.predictions.bias": torch.randn(64)}))
    with pytest.warns(UserWarning, match="not tied"):
        ours = load(tmp_path)
    theirs = transformers.BertForMaskedLM.from_pretrained(tmp_path).eval()
    with torch.no_grad():
        torch.testing.assert_close(ours(IDS).logits, theirs(IDS).logits, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.float8_e4m3fn])
def test_numbers_that_are_no_plain_weights_are_refused(folder, dtype):
    _restore(folder, lambda state: state.update({UP: state[UP].to(dtype)}))
    with pytest.raises(CheckpointError, match=f"no plain weights: {UP} is {str(dtype)[6:]}"):
        load(folder)


def test_a_quantised_checkpoint_is_refused_by_its_method(folder):
    _config(folder, quantization_config={"quant_method": "gptq", "bits": 4})
    with pytest.raises(CheckpointError, match="quantised with gptq"):
        load(folder)


def test_a_dtype_that_cannot_hold_the_weights_is_refused(folder):
    _restore(folder, lambda state: state[UP].fill_(1e6))
    assert load(folder, dtype="bf16").dtype == torch.bfloat16
    with pytest.raises(CheckpointError, match=f"does not fit into torch.float16.*{UP}"):
        load(folder, dtype="fp16")


def test_a_saved_config_states_one_dtype(folder, tmp_path):
    _config(folder, torch_dtype="float32")
    load(folder, dtype="bf16").save_pretrained(tmp_path / "b")
    saved = json.loads((tmp_path / "b/config.json").read_text())
    assert saved["dtype"] == "bfloat16" and "torch_dtype" not in saved


def test_an_architecture_that_is_not_there_is_named(folder):
    _config(folder, architectures=["LlamaForSomethingElse"])
    with pytest.warns(UserWarning, match="LlamaForSomethingElse.*LlamaModel"):
        assert type(load(folder)).__name__ == "LlamaModel"
    assert type(load(folder, task="causal-lm")).__name__ == "LlamaForCausalLM"


def test_whoever_may_read_the_config_may_read_the_weights(folder, tmp_path):
    for size, name in ((2**30, "one"), (9_000, "many")):
        load(folder).save_pretrained(tmp_path / name, shard_size=size)
        assert len({f.stat().st_mode for f in (tmp_path / name).iterdir() if f.name != "generation_config.json"}) == 1


@pytest.mark.parametrize(
    "options, says",
    [
        ({"device": "gpu"}, "device 'gpu' cannot be used"),
        ({"device": 3.5}, "device 3.5 cannot be used"),
        ({"task": "sequence-classification", "num_labels": 0}, "num_labels must be at least 1"),
        ({"revision": "main"}, "picks a version on the hub"),
    ],
)
def test_options_that_cannot_be_met_are_refused(folder, options, says):
    with pytest.raises(HeadwayError, match=says):
        load(folder, **options)
