"""Loading and saving: round trips with transformers, and every kind of bad file."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file

import headway
from headway.checkpoints.gguf import halves
from headway.errors import CheckpointError
from tests.models.families import build

TASK = {"bert": "masked-lm", "modernbert": "masked-lm"}


@pytest.fixture
def folder(tmp_path):
    """A tiny Llama as transformers saves it."""
    theirs, _ = build("llama", "causal-lm")
    theirs.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_a_backbone_fits_a_head_and_the_reverse(tmp_path):
    theirs, _ = build("bert", "base")
    theirs.save_pretrained(tmp_path / "base")
    with pytest.warns(UserWarning, match="classifier.weight"):
        model = headway.load(tmp_path / "base", task="sequence-classification", num_labels=4)
    assert model.classifier.weight.shape == (4, 32) and float(model.classifier.weight.std()) > 0
    assert torch.equal(model.bert.encoder.layer[0].output.dense.weight, theirs.encoder.layer[0].output.dense.weight)
    whole, _ = build("bert", "masked-lm")
    whole.save_pretrained(tmp_path / "mlm")
    base = headway.load(tmp_path / "mlm", task="masked-lm").bert
    assert torch.equal(base.embeddings.word_embeddings.weight, whole.bert.embeddings.word_embeddings.weight)


def test_modernbert_heads_take_the_pretrained_dense_and_norm(tmp_path):
    theirs, _ = build("modernbert", "masked-lm")
    theirs.save_pretrained(tmp_path / "m")
    with pytest.warns(UserWarning, match="classifier"):
        model = headway.load(tmp_path / "m", task="token-classification")
    assert torch.equal(model.head.dense.weight, theirs.head.dense.weight)
    assert torch.equal(model.head.norm.weight, theirs.head.norm.weight)


def test_dtype_and_attention(folder):
    model = headway.load(folder, dtype="bf16", attention="tiled")
    assert model.dtype == torch.bfloat16 and set(model.attention.current().values()) == {"tiled"}
    with pytest.raises(ValueError, match="known"):
        headway.load(folder, attention="flash99")
    with pytest.raises(CheckpointError, match="dtype"):
        headway.load(folder, dtype="int4")


def test_rows_of_a_head_from_pairs_to_halves():
    rows = torch.arange(8).view(8, 1)
    assert halves(rows, 2).flatten().tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


def test_published_configs_have_the_published_number_of_parameters():
    """On the meta device, from the values of the published config.json files."""
    from headway.models.registry import resolve

    long = [1.0] * 48
    published = {
        "gpt2": (dict(model_type="gpt2"), "causal-lm", 124_439_808),
        "smollm2": (
            dict(model_type="llama", vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30,
                 num_attention_heads=9, num_key_value_heads=3, tie_word_embeddings=True), "causal-lm", 134_515_008),
        "gemma2-2b": (dict(model_type="gemma2"), "causal-lm", 2_614_341_888),
        "gemma3-270m": (
            dict(model_type="gemma3_text", vocab_size=262144, hidden_size=640, intermediate_size=2048, num_hidden_layers=18,
                 num_attention_heads=4, num_key_value_heads=1, head_dim=256, sliding_window=512), "causal-lm", 268_098_176),
        "phi3-mini-128k": (
            dict(model_type="phi3", max_position_embeddings=131072, rope_scaling=dict(
                type="longrope", short_factor=long, long_factor=long)), "causal-lm", 3_821_079_552),
        "glm-4-9b": (dict(model_type="glm", tie_word_embeddings=False), "causal-lm", 9_399_951_360),
        "bert-base": (dict(model_type="bert"), "base", 109_482_240),
        "modernbert-base": (dict(model_type="modernbert"), "masked-lm", 149_655_232),
        "modernbert-large": (
            dict(model_type="modernbert", hidden_size=1024, intermediate_size=2624, num_hidden_layers=28,
                 num_attention_heads=16), "masked-lm", 395_881_664),
    }  # fmt: skip
    for name, (raw, task, count) in published.items():
        config, model = resolve(raw, task)
        with torch.device("meta"):
            built = model(config.from_dict(raw))
        built.tie_weights()
        assert built.num_parameters() == count, name


VECTORS = Path(__file__).resolve().parents[1] / "data" / "flexbert"


def vectors(tmp_path):
    """The research checkpoints, copied so that they can be changed."""
    return Path(shutil.copytree(VECTORS, tmp_path / "flexbert"))


VARIANTS = ["standard", "local_rotary_base_minus_one", "all_global", "qkv_bias_only", "different_activations"]


@pytest.mark.parametrize("variant", VARIANTS)
def test_research_modernbert_gives_the_original_outputs(variant, tmp_path):
    from headway.checkpoints.flexbert import convert_flexbert

    source = vectors(tmp_path) / variant
    convert_flexbert(source / "research_state.safetensors", tmp_path / "out")
    inputs, want = load_file(source / "inputs.safetensors"), load_file(source / "expected.safetensors")
    real = inputs["attention_mask"].bool()
    for model in (headway.load(tmp_path / "out"), hf.ModernBertForMaskedLM.from_pretrained(tmp_path / "out")):
        with torch.no_grad():
            out = model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"], output_hidden_states=True)
        assert float((out.logits[real] - want["logits"]).abs().max()) < 1e-4
        assert float((out.hidden_states[-1][real] - want["hidden.final"]).abs().max()) < 1e-4
    if variant == "standard":
        ours = headway.load(tmp_path / "out")
        with torch.no_grad():
            hidden = ours(**{k: inputs[k] for k in ("input_ids", "attention_mask")}, output_hidden_states=True).hidden_states
        for i in range(3):
            assert float((hidden[i + 1][real] - want[f"hidden.layers.{i}"]).abs().max()) < 1e-4


def test_a_composer_checkpoint_equals_the_safetensors(tmp_path):
    from headway.checkpoints.flexbert import convert_flexbert

    source = vectors(tmp_path) / "standard"
    convert_flexbert(source / "composer_checkpoint.pt", tmp_path / "a")
    convert_flexbert(source / "research_state.safetensors", tmp_path / "b")
    a, b = (load_file(tmp_path / x / "model.safetensors") for x in "ab")
    assert a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


@pytest.mark.parametrize(
    "option, value",
    [
        ("bert_layer", "postnorm"), ("attention_layer", "rope_parallel"), ("mlp_layer", "mlp"), ("normalization", "rmsnorm"),
        ("rotary_emb_dim", 8), ("rotary_emb_scale_base", 512), ("skip_first_prenorm", False), ("head_pred_norm", False),
        ("embedding_layer", "absolute_pos"), ("final_norm", False), ("sliding_window", 15), ("pooling_type", "max"),
        ("initial_mlp_layer", "mlp"), ("a_new_option", 1), ("embed_norm", False),
    ],
)  # fmt: skip
def test_options_without_a_counterpart_are_refused_by_name(option, value, tmp_path):
    from headway.checkpoints.flexbert import convert_flexbert

    source = vectors(tmp_path) / "standard"
    config = json.loads((source / "research_config.json").read_text())
    config[option] = value
    (source / "research_config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=option):
        convert_flexbert(source / "research_state.safetensors", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_interleaved_rotary_is_a_permutation(tmp_path):
    """Scores of q and k are the same whether pairs are neighbours or halves, once rows are moved."""
    from headway.checkpoints.flexbert import to_halves
    from headway.nn.rope import RotaryEmbedding, rotate

    weight, x = torch.randn(3 * 32, 32), torch.randn(1, 6, 32)
    rope = RotaryEmbedding({"rope_theta": 1e4}, 8, 64)
    cos, sin = rope(torch.arange(6), torch.float32)

    def scores(w, interleaved):
        q, k, _ = (x @ w.T).unflatten(-1, (3, 4, 8)).unbind(-3)
        q, k = rotate(q, cos, sin, interleaved), rotate(k, cos, sin, interleaved)
        return torch.einsum("bqhd,bkhd->bhqk", q, k)

    torch.testing.assert_close(scores(to_halves(weight, 4), False), scores(weight, True), atol=1e-4, rtol=1e-4)
