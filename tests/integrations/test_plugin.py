"""The plugin in transformers' own machinery: caches, checkpointing, graphs, export, PEFT, Trainer; and what it refuses."""

from __future__ import annotations

import sys

import pytest
import torch
import transformers as tf
from transformers import masking_utils as mu

from headway.attention import BackendRefused, backends
from headway.attention.record import record_plans
from headway.integrations.transformers import implementation, register
from headway.integrations.transformers.call import attend
from headway.integrations.transformers.register import make_mask
from tests.integrations import tiny

register()
DECODERS = [tiny.llama, tiny.gemma2, tiny.mistral]
MODELS = [*DECODERS, tiny.bert, tiny.modernbert]


@pytest.mark.parametrize("name", ["headway", "headway:tiled", "headway:eager"])
@pytest.mark.parametrize("build", MODELS)
def test_forward_and_gradients(build, name):
    ids, mask = tiny.batch()
    model = build()
    want, grads = tiny.run(model, "eager", ids, mask, grad=True)
    with record_plans() as plans:
        got, mine = tiny.run(model, name, ids, mask, grad=True)
    assert len(plans) == model.config.num_hidden_layers
    if ":" in name:
        assert {p.backend.name for p, _ in plans} == {name.split(":")[1]}
    torch.testing.assert_close(got, want, atol=5e-6, rtol=5e-5)
    torch.testing.assert_close(mine, grads, atol=2e-5 * float(grads.abs().max()), rtol=1e-3)


def test_layers_share_one_mask_for_each_kind():
    ids, mask = tiny.batch()
    model = tiny.gemma2(num_hidden_layers=6)
    seen = []
    for layer in model.model.layers:
        layer.self_attn.register_forward_pre_hook(lambda m, a, k: seen.append(k["attention_mask"].bound), with_kwargs=True)
    tiny.run(model, "headway", ids, mask)
    assert len(seen) == 6 and len(set(map(id, seen))) == 2
    assert all(len([k for k in b.memo if isinstance(k, str) and k.startswith("tiled|")]) == 1 for b in seen)


@pytest.mark.parametrize("cache", ["dynamic", "static", None])
@pytest.mark.parametrize("build", DECODERS)
def test_generation(build, cache):
    """Beyond the window, from left-padded rows; logits of every step."""
    ids, mask = tiny.batch("left")
    model, runs = build(), []
    how = {"use_cache": False} if cache is None else {"cache_implementation": cache} if cache == "static" else {}
    for name in ("eager", "headway"):
        model.set_attn_implementation(name)
        made = model.generate(
            ids, attention_mask=mask, max_new_tokens=9, do_sample=False, output_logits=True, return_dict_in_generate=True, **how
        )
        runs.append((made.sequences, torch.stack(made.logits)))
    assert torch.equal(runs[0][0], runs[1][0])
    torch.testing.assert_close(runs[1][1], runs[0][1], atol=5e-6, rtol=5e-5)


def test_prefill_longer_than_the_window_into_a_sliding_cache():
    ids, _ = tiny.batch("none", length=12)
    model = tiny.mistral()
    with torch.no_grad():
        want = model(ids, use_cache=False)[0]
        model.set_attn_implementation("headway")
        cache = tf.DynamicCache(config=model.config)
        first = model(ids[:, :8], past_key_values=cache)[0]
        rest = [model(ids[:, i : i + 2], past_key_values=cache)[0] for i in (8, 10)]
    torch.testing.assert_close(torch.cat([first, *rest], 1), want, atol=5e-6, rtol=5e-5)


@pytest.mark.parametrize("build", [tiny.llama, tiny.gemma2, tiny.modernbert])
def test_gradient_checkpointing(build):
    ids, mask = tiny.batch()
    model = build()
    want, grads = tiny.run(model, "eager", ids, mask, grad=True)
    model.gradient_checkpointing_enable()
    model.train()
    got, mine = tiny.run(model, "headway", ids, mask, grad=True)
    torch.testing.assert_close(got, want, atol=5e-6, rtol=5e-5)
    torch.testing.assert_close(mine, grads, atol=2e-5 * float(grads.abs().max()), rtol=1e-3)


@pytest.mark.parametrize("build", MODELS)
def test_one_full_graph_for_all_lengths(build):
    from torch._dynamo.testing import CompileCounter

    torch._dynamo.reset()
    model, plain, count = build(), build(), CompileCounter()
    plain.set_attn_implementation("eager")
    model.set_attn_implementation("headway")
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend=count)
    with torch.no_grad():
        for length in (13, 17, 29):
            ids, mask = tiny.batch("both", length)
            got, want = compiled(ids, attention_mask=mask)[0], plain(ids, attention_mask=mask)[0]
            torch.testing.assert_close(got[mask.bool()], want[mask.bool()], atol=5e-6, rtol=5e-5)
    assert count.frame_count == 1


@pytest.mark.slow
def test_compiled_training_step():
    torch._dynamo.reset()
    ids, mask = tiny.batch("right")
    labels = ids.masked_fill(mask == 0, -100)
    model = tiny.gemma2(num_hidden_layers=2, vocab_size=99).train()
    model.set_attn_implementation("eager")
    want = torch.autograd.grad(model(ids, attention_mask=mask, labels=labels).loss, list(model.parameters()))
    model.set_attn_implementation("headway")
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend="aot_eager")
    got = torch.autograd.grad(compiled(ids, attention_mask=mask, labels=labels).loss, list(model.parameters()))
    for g, w in zip(got, want):
        torch.testing.assert_close(g, w, atol=1e-5, rtol=1e-3)


def test_export():
    ids, mask = tiny.batch("right")
    model = tiny.llama(use_cache=False)
    model.set_attn_implementation("headway")
    dims = {"input_ids": {1: torch.export.Dim("length", min=4, max=60)}, "attention_mask": {1: torch.export.Dim.AUTO}}
    program = torch.export.export(model, (), {"input_ids": ids, "attention_mask": mask}, dynamic_shapes={**dims}, strict=False)
    ids, mask = tiny.batch("right", length=21)
    want = model(ids, attention_mask=mask)[0][mask.bool()]
    got = program.module()(input_ids=ids, attention_mask=mask)[0][mask.bool()]
    torch.testing.assert_close(got, want, atol=5e-6, rtol=5e-5)


def test_attention_weights_by_call_argument():
    ids, mask = tiny.batch("left")
    model = tiny.llama(attn_implementation="eager")
    with torch.no_grad():
        want = model(ids, attention_mask=mask, output_attentions=True).attentions
        model.set_attn_implementation("headway")
        got = model(ids, attention_mask=mask, output_attentions=True).attentions
        assert not model(ids, attention_mask=mask).attentions
    rows = mask[:, None, :, None]
    assert len(got) == len(want) == 2
    for g, w in zip(got, want):
        torch.testing.assert_close(g * rows, w * rows, atol=1e-6, rtol=1e-5)


def test_four_dimensional_masks_of_the_caller():
    ids, _ = tiny.batch("none")
    model = tiny.llama()
    allowed = (torch.rand(4, 1, 13, 13, generator=torch.Generator().manual_seed(0)) < 0.5) | torch.eye(13).bool()
    additive = torch.zeros(4, 1, 13, 13).masked_fill(~allowed, torch.finfo(torch.float32).min)
    with torch.no_grad():
        want = model(ids, attention_mask=additive)[0]
        model.set_attn_implementation("headway")
        for mask in (allowed, additive):
            torch.testing.assert_close(model(ids, attention_mask=mask)[0], want, atol=5e-6, rtol=5e-5)


def test_dropout_acts_in_training_only():
    ids, mask = tiny.batch("none")
    model = tiny.llama(attention_dropout=0.5)
    model.set_attn_implementation("headway")
    with torch.no_grad():
        assert torch.equal(model(ids)[0], model(ids)[0])
        model.train()
        torch.manual_seed(0)
        first = model(ids)[0]
        torch.manual_seed(0)
        assert torch.equal(first, model(ids)[0])
        assert (first - model(ids)[0]).abs().max() > 1e-3


def test_peft():
    peft = pytest.importorskip("peft")
    ids, mask = tiny.batch("left")
    model = peft.get_peft_model(tiny.llama(), peft.LoraConfig(init_lora_weights=False, target_modules=["q_proj", "v_proj"]))
    model.eval()
    losses = []
    for name in ("eager", "headway"):
        model.base_model.model.set_attn_implementation(name)
        model.zero_grad()
        out = model(ids, attention_mask=mask)[0][mask.bool()]
        out.pow(2).sum().backward()
        losses.append([out.detach(), *[p.grad.clone() for p in model.parameters() if p.grad is not None]])
    for got, want in zip(*losses, strict=True):
        torch.testing.assert_close(got, want, atol=1e-3, rtol=1e-4)


def test_trainer(tmp_path):
    pytest.importorskip("accelerate")
    ids, mask = tiny.batch("right")
    data = [{"input_ids": i, "attention_mask": m, "labels": i.masked_fill(m == 0, -100)} for i, m in zip(ids, mask)]
    runs = []
    for name in ("eager", "headway"):
        model = tiny.mistral().train()
        model.set_attn_implementation(name)
        args = tf.TrainingArguments(
            str(tmp_path), max_steps=4, per_device_train_batch_size=2, learning_rate=1e-2, report_to=[], use_cpu=True,
            save_strategy="no", logging_steps=1, disable_tqdm=True, seed=0,
        )  # fmt: skip
        trainer = tf.Trainer(model=model, args=args, train_dataset=data)
        trainer.train()
        runs.append([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
    assert len(runs[0]) == 4 and runs[0][-1] < runs[0][0]
    assert runs[1] == pytest.approx(runs[0], rel=1e-4)


def test_names_avoid_what_transformers_takes_for_its_own():
    for backend in ("auto", *backends(), "flash2", "sdpa:flash"):
        name = implementation(backend)
        assert name.startswith("headway") and "flash" not in name and "sdpa" not in name
    model = tiny.llama()
    model.set_attn_implementation(implementation("sdpa"))
    with record_plans() as plans, torch.no_grad():
        model(tiny.batch("none")[0])
    assert {p.backend.name for p, _ in plans} == {"sdpa"}


def test_load_with_the_implementation(tmp_path):
    model = tiny.gemma2()
    model.save_pretrained(tmp_path)
    again = tf.AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="headway")
    assert again.config._attn_implementation == "headway"
    ids, mask = tiny.batch("left")
    with torch.no_grad():
        got, want = again(ids, attention_mask=mask)[0], model(ids, attention_mask=mask)[0]
    torch.testing.assert_close(got[mask.bool()], want[mask.bool()], atol=5e-6, rtol=5e-5)


def qkv(length: int = 8):
    return [torch.randn(1, 2, length, 16, generator=torch.Generator().manual_seed(i)) for i in range(3)]


def test_unknown_keywords_are_refused():
    with pytest.raises(TypeError, match=r"\['alibi'\]"):
        attend(torch.nn.Identity(), *qkv(), None, alibi=torch.ones(2))
    attend(torch.nn.Identity(), *qkv(), None, alibi=None, position_ids=torch.arange(8), use_cache=True)


def test_a_window_without_its_mask_or_another_is_refused():
    with pytest.raises(ValueError, match="brings no mask for 8 keys"):
        attend(torch.nn.Identity(), *qkv(), None, sliding_window=4)
    for window, text in (
        (mu.sliding_window_causal_mask_function(5), "has one of 5 keys"),
        (mu.causal_mask_function, "has none"),
    ):
        mask = make_mask(1, 8, 8, mask_function=window)
        with pytest.raises(ValueError, match=f"window of 6, its mask {text}"):
            attend(torch.nn.Identity(), *qkv(), mask, sliding_window=6)
    attend(torch.nn.Identity(), *qkv(), mask, sliding_window=8)  # wider than the keys: both mean the same


def test_a_backend_that_refuses_raises_in_the_model():
    model = tiny.gemma2()
    model.set_attn_implementation("headway:torch")
    with pytest.raises(BackendRefused, match="soft cap"):
        model(tiny.batch("none")[0])


@pytest.mark.parametrize("version", ["4.57.0", "5.0.0", "6.0.0"])
def test_other_versions_are_refused(monkeypatch, version):
    monkeypatch.setattr(sys.modules["transformers"], "__version__", version)
    with pytest.raises(ImportError, match=version):
        register()
