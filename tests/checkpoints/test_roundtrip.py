"""What Headway writes, transformers reads, and the other way round, bit for bit."""

from __future__ import annotations

import json

import pytest
import torch
import transformers

import headway
import headway.errors
from headway.checkpoints.save import save_model

TINY = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
LLAMA = transformers.LlamaConfig(**TINY, num_key_value_heads=2, tie_word_embeddings=True)
GEMMA3 = transformers.Gemma3TextConfig(**TINY, num_key_value_heads=2, head_dim=8, query_pre_attn_scalar=8, sliding_window=4)
BERT = transformers.BertConfig(**TINY, max_position_embeddings=32)
CASES = [
    (transformers.LlamaForCausalLM, LLAMA),
    (transformers.Gemma3ForCausalLM, GEMMA3),
    (transformers.BertModel, BERT),
    (transformers.BertForMaskedLM, BERT),
    (transformers.BertForSequenceClassification, BERT),
]


def _bytes(state):
    return {n: t.contiguous().view(torch.uint8) for n, t in state.items()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("peer, config", CASES, ids=lambda c: getattr(c, "__name__", ""))
def test_round_trip_is_bit_identical(peer, config, dtype, tmp_path):
    theirs = peer(config).to(dtype)
    theirs.save_pretrained(tmp_path / "a")
    ours = headway.load(tmp_path / "a")
    assert type(ours).__name__ == peer.__name__ and not ours.training and ours.dtype == dtype
    ours.save_pretrained(tmp_path / "b")
    back, report = peer.from_pretrained(tmp_path / "b", output_loading_info=True, dtype="auto")
    assert not report["missing_keys"] and not report["unexpected_keys"] and not report["mismatched_keys"]
    back.save_pretrained(tmp_path / "c")
    again = headway.load(tmp_path / "c")
    want = _bytes(theirs.state_dict())
    for state in (_bytes(back.state_dict()), _bytes(again.state_dict())):
        assert all(torch.equal(state[n], want[n]) for n in want)


def test_shards_are_read_and_an_older_save_does_not_linger(tmp_path):
    theirs = transformers.LlamaForCausalLM(LLAMA)
    theirs.save_pretrained(tmp_path / "a", max_shard_size="20KB")
    assert (tmp_path / "a/model.safetensors.index.json").is_file()
    ours = headway.load(tmp_path / "a")
    save_model(ours, tmp_path / "b", shard_size=20_000)
    back = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "b")
    assert all(torch.equal(t, theirs.state_dict()[n]) for n, t in back.state_dict().items())
    with torch.no_grad():
        ours.model.norm.weight.fill_(3.0)
    save_model(ours, tmp_path / "b")
    assert [f.name for f in (tmp_path / "b").glob("*.safetensors*")] == ["model.safetensors"]
    assert headway.load(tmp_path / "b").model.norm.weight[0] == 3.0


def test_backbone_into_task_model_and_back(tmp_path):
    theirs = transformers.BertModel(BERT).to(torch.bfloat16)
    theirs.save_pretrained(tmp_path / "base")
    with pytest.warns(UserWarning, match="classifier.weight"):
        ours = headway.load(tmp_path / "base", task="sequence-classification", num_labels=3)
    assert torch.equal(ours.bert.pooler.dense.weight, theirs.pooler.dense.weight)
    assert ours.classifier.weight.shape == (3, 32) and ours.classifier.weight.dtype == torch.bfloat16
    assert 0.005 < ours.classifier.weight.float().std() < 0.05 and not ours.classifier.bias.any()
    ours.save_pretrained(tmp_path / "task")
    base = headway.load(tmp_path / "task", task="base")
    assert all(torch.equal(t, theirs.state_dict()[n]) for n, t in base.state_dict().items())


def test_a_head_alone_may_be_new(tmp_path):
    """A backbone weight that is missing is an error whatever the task."""
    from safetensors.torch import load_file, save_file

    transformers.BertModel(BERT).save_pretrained(tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    del state["encoder.layer.1.output.dense.weight"]
    save_file(state, tmp_path / "model.safetensors", metadata={"format": "pt"})
    for task in ("base", "token-classification"):
        with pytest.raises(headway.errors.CheckpointError, match="missing: .*encoder.layer.1.output.dense.weight"):
            headway.load(tmp_path, task=task)


def test_unknown_config_keys_are_kept(tmp_path):
    transformers.LlamaForCausalLM(LLAMA).save_pretrained(tmp_path / "a")
    path = tmp_path / "a/config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "somebody_elses_key": [1, {"x": 2}]}))
    headway.load(tmp_path / "a").save_pretrained(tmp_path / "b")
    assert json.loads((tmp_path / "b/config.json").read_text())["somebody_elses_key"] == [1, {"x": 2}]
