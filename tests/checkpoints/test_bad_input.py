"""Damaged, ill-fitting and hostile checkpoints: one clear error, nothing half-written, no code run."""

from __future__ import annotations

import json
import os
import pickle

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from headway import load, load_tokenizer
from headway.checkpoints.resolve import resolve
from headway.checkpoints.save import save_model
from headway.errors import CheckpointError, HeadwayError

CONFIG = transformers.LlamaConfig(
    vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2
)


@pytest.fixture
def folder(tmp_path):
    transformers.LlamaForCausalLM(CONFIG).save_pretrained(tmp_path / "m")
    return tmp_path / "m"


def _change(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_all_that_does_not_fit_is_listed_in_one_error(folder):
    path = folder / "model.safetensors"
    state = load_file(path)
    del state["model.norm.weight"]
    state["model.layers.0.self_attn.k_proj.weight"] = torch.zeros(3, 4)
    state["model.layers.7.surprise.weight"] = torch.zeros(2)
    save_file(state, path)
    with pytest.raises(CheckpointError) as caught:
        load(folder)
    text = str(caught.value)
    assert "missing: model.norm.weight" in text
    assert "unexpected: model.layers.7.surprise.weight" in text
    assert "model.layers.0.self_attn.k_proj.weight (3, 4) instead of (16, 32)" in text


@pytest.mark.parametrize("keep", [0, 4, 100, 0.5, 0.999])
def test_truncated_file(folder, keep):
    path = folder / "model.safetensors"
    data = path.read_bytes()
    path.write_bytes(data[: keep if isinstance(keep, int) else int(len(data) * keep)])
    with pytest.raises(CheckpointError, match="cut short or damaged"):
        load(folder)


def test_missing_shard_is_named(folder, tmp_path):
    save_model(load(folder), tmp_path / "s", shard_size=20_000)
    gone = sorted((tmp_path / "s").glob("model-*.safetensors"))[1]
    gone.unlink()
    with pytest.raises(CheckpointError, match=f"missing shards: {gone.name}"):
        load(tmp_path / "s")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_nan_and_infinity_are_named(folder, value):
    path = folder / "model.safetensors"
    state = load_file(path)
    state["model.layers.1.mlp.up_proj.weight"][3, 4] = value
    save_file(state, path)
    with pytest.raises(CheckpointError, match="model.layers.1.mlp.up_proj.weight"):
        load(folder)


def test_sums_that_overflow_are_no_nan(folder):
    path = folder / "model.safetensors"
    state = load_file(path)
    state["model.layers.1.mlp.up_proj.weight"].fill_(3e38)
    save_file(state, path)
    assert load(folder).model.layers[1].mlp.up_proj.weight[0, 0] == 3e38


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"model_type": "frobnicator"}, "unknown architecture.*frobnicator.*llama"),
        ({"hidden_size": "wide"}, "config"),
        ({"hidden_size": 33}, r"instead of \(64, 33\)"),
        ({"num_hidden_layers": 3}, "missing: model.layers.2"),
    ],
)
def test_config_that_describes_no_model(folder, changes, message):
    _change(folder, head_dim=None, **changes)
    with pytest.raises(HeadwayError, match=message):
        load(folder)


@pytest.mark.parametrize("text", ["", "{", "[]", "\x00\xff"])
def test_config_that_is_no_json(folder, text):
    (folder / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match="config.json"):
        load(folder)


def test_paths_that_are_no_model(tmp_path, folder):
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "empty").mkdir()
    for ref in (tmp_path / "absent", tmp_path / "notes.txt", tmp_path / "empty", "no-such-model.gguf", "./no/such"):
        with pytest.raises(CheckpointError, match="no model|no checkpoint") as caught:
            load(ref)
        assert "\n" not in str(caught.value)
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="no weights"):
        load(folder)
    with pytest.raises(HeadwayError, match="has no tokenizer"):
        load_tokenizer(folder)


class _Evil:
    def __init__(self, flag):
        self.flag = flag

    def __reduce__(self):
        return os.mkdir, (str(self.flag),)


def test_pickles_are_refused_and_never_run(folder, tmp_path):
    state = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(state, folder / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="allow_pickle=True"):
        load(folder)
    loaded = load(folder, allow_pickle=True).state_dict()
    assert all(torch.equal(loaded[n], t) for n, t in state.items())
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(_Evil(tmp_path / "owned")))
    with pytest.raises(CheckpointError):
        load(folder, allow_pickle=True)
    assert not (tmp_path / "owned").exists()


def test_shards_outside_the_folder_are_not_read(folder, tmp_path):
    os.replace(folder / "model.safetensors", tmp_path / "outside.safetensors")
    index = {"weight_map": {"model.norm.weight": "../outside.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match="missing shards: outside.safetensors"):
        load(folder)


def test_unwritable_output_leaves_nothing(folder, tmp_path):
    model = load(folder)
    (tmp_path / "file").write_text("in the way")
    for target in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(CheckpointError, match="cannot write"):
            save_model(model, target)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "m"]
    assert (tmp_path / "file").read_text() == "in the way"


def test_a_failed_save_keeps_the_old_model(folder):
    model = load(folder)
    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    model.config.extra["unwritable"] = object()
    with pytest.raises(TypeError):
        save_model(model, folder)
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before
    assert [p.name for p in folder.parent.iterdir()] == ["m"]


def test_unknown_options(folder):
    with pytest.raises(HeadwayError, match="unknown task"):
        load(folder, task="poetry")
    with pytest.raises(HeadwayError, match="unknown dtype"):
        load(folder, dtype="int8")
    with pytest.raises(ValueError, match="folklore"):
        load(folder, attention="folklore")


def test_package_references(tmp_path, monkeypatch):
    with pytest.raises(CheckpointError, match="no installed package"):
        resolve("package:surely-not-installed/model")
    with pytest.raises(CheckpointError, match="stay inside"):
        resolve("package:numpy/../torch")
    info = tmp_path / "tiny_model-1.0.dist-info"
    (tmp_path / "tiny_model/weights").mkdir(parents=True)
    info.mkdir()
    (tmp_path / "tiny_model/__init__.py").write_text("raise RuntimeError('imported')")
    transformers.LlamaForCausalLM(CONFIG).save_pretrained(tmp_path / "tiny_model/weights")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
    names = ["tiny_model/__init__.py", "tiny_model/weights/config.json", "tiny_model-1.0.dist-info/METADATA"]
    (info / "RECORD").write_text("".join(f"{n},,\n" for n in names))
    monkeypatch.syspath_prepend(tmp_path)
    for ref in ("package:tiny-model/weights", "package:tiny-model/tiny_model/weights"):
        assert type(load(ref)).__name__ == "LlamaForCausalLM"
