"""Checkpoints of the ModernBERT research code (FlexBERT) as ModernBERT models in Hugging Face layout.

Read are a composer `.pt` (weights_only), or safetensors beside its config as JSON. Every option of the research config
is mapped, known not to matter to the weights, or refused by name: nothing is guessed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headway.checkpoints.fit import fit
from headway.checkpoints.resolve import PICKLES
from headway.checkpoints.save import save_model
from headway.checkpoints.tensors import check_finite, load_pickle, read_tensors
from headway.errors import CheckpointError
from headway.models.registry import resolve as resolve_class

# option -> values with which ModernBERT computes the same
NEEDED: dict[str, tuple[Any, ...]] = {
    "attention_layer": ("rope",), "bert_layer": ("prenorm",), "embedding_layer": ("sans_pos",), "mlp_layer": ("glu",),
    "encoder_layer": ("base",), "normalization": ("layernorm", "triton_layernorm"), "embed_norm": (True,),
    "final_norm": (True,), "skip_first_prenorm": (True,), "rotary_emb_scale_base": (None,), "head_pred_norm": (True,),
    "tie_word_embeddings": (True,), "is_decoder": (False,), "add_cross_attention": (False,), "chunk_size_feed_forward": (0,),
    "cross_attention_hidden_size": (None,),
}  # fmt: skip

MAPPED = {
    "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "hidden_act",
    "attn_qkv_bias", "attn_out_bias", "mlp_in_bias", "mlp_out_bias", "norm_kwargs", "decoder_bias", "head_pred_act",
    "head_pred_bias", "head_class_act", "head_class_bias", "head_class_norm", "sliding_window", "global_attn_every_n_layers",
    "rotary_emb_base", "local_attn_rotary_emb_base", "rotary_emb_dim", "local_attn_rotary_emb_dim", "rotary_emb_interleaved",
    "attention_probs_dropout_prob", "embed_dropout_prob", "mlp_dropout_prob", "head_class_dropout", "pooling_type",
    "masked_prediction", "pad_token_id", "bos_token_id", "eos_token_id", "sep_token_id", "max_position_embeddings",
    "initial_attention_layer", "initial_bert_layer", "initial_mlp_layer", "init_std", "init_cutoff_factor",
}  # fmt: skip

# how the model was trained, run or drawn at first; inherited fields that the research model never reads
WITHOUT_EFFECT = {
    "_name_or_path", "allow_embedding_resizing", "architectures", "attn_out_dropout_prob", "classifier_dropout",
    "compile_model", "deterministic_fa2", "deterministic_flash_attn", "gradient_checkpointing", "head_pred_dropout",
    "hidden_dropout_prob", "init_method", "init_small_embedding", "initializer_range", "layer_norm_eps", "loss_function",
    "loss_kwargs", "model_type", "num_initial_layers", "pad_logits", "padding", "position_embedding_type",
    "transformers_version", "torch_dtype", "dtype", "type_vocab_size", "unpad_embeddings", "use_cache", "use_fa2",
    "use_sdpa_attn_mask", "id2label", "label2id", "num_labels", "problem_type", "return_dict", "output_attentions",
    "output_hidden_states", "finetuning_task", "tokenizer_class", "prefix", "pruned_heads", "task_specific_params",
    "warn_on_layer_norm", "alibi_starting_size",
}  # fmt: skip


def convert_flexbert(src: str | Path, dst: str | Path, *, config: str | Path | None = None) -> None:
    """Reads a research checkpoint and writes a ModernBertForMaskedLM into folder `dst`.

    src: a composer .pt, or a .safetensors file (or a folder with one). config: the research config as JSON, by default
    the `*config*.json` beside the weights. Raises CheckpointError naming each option that cannot be converted.
    """
    tensors, research = read(Path(src), None if config is None else Path(config))
    check_finite(tensors, f"{src} is damaged")
    raw = convert_config(research)
    config_class, model_class = resolve_class(raw, "masked-lm")
    settings = config_class.from_dict(raw)
    with torch.device("meta"):
        model = model_class(settings)
    fit(model, convert_tensors(tensors, research, raw), str(src), new_head=False)
    save_model(model, dst)


def read(src: Path, config: Path | None) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the research config of a checkpoint."""
    if not src.exists():
        raise CheckpointError(f"'{src}': no such file or folder")
    if src.suffix in PICKLES:
        state = load_pickle(src, allow_pickle=True)
        try:
            tensors = state["state"]["model"]
            found = state["state"]["integrations"]["huggingface"]["model"]["config"]["content"]
        except (KeyError, TypeError):
            raise CheckpointError(f"{src}: is no composer checkpoint; it lacks state/model or the model's config") from None
        return dict(tensors), dict(found) if config is None else _json(config)
    if src.is_dir():
        files = sorted(src.glob("*.safetensors"))
        named = [f for f in files if "state" in f.name or "model" in f.name] or files
        if len(named) != 1:
            raise CheckpointError(f"{src}: holds {len(named)} checkpoints; name one")
        src = named[0]
    if config is None:
        beside = sorted(src.parent.glob("*config*.json"))
        if len(beside) != 1:
            raise CheckpointError(f"{src}: found {len(beside)} configs beside it; give one with config=")
        config = beside[0]
    return read_tensors(src), _json(config)


def _json(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read ({error})") from None


def convert_config(research: dict[str, Any]) -> dict[str, Any]:
    """A ModernBERT config.json for a research config."""
    c = research
    wrong = refused(c)
    if wrong:
        raise CheckpointError("these options of the research config cannot be converted:\n  " + "\n  ".join(wrong))
    window, every = c.get("sliding_window", -1), c.get("global_attn_every_n_layers", -1)
    layers = c["num_hidden_layers"]
    if window == -1:
        kinds = ["full_attention"] * layers
    elif every == -1:
        kinds = ["sliding_attention"] * layers
    else:
        kinds = ["sliding_attention" if i % every else "full_attention" for i in range(layers)]
    base, local = c.get("rotary_emb_base", 10000.0), c.get("local_attn_rotary_emb_base", -1)
    norm = c.get("norm_kwargs") or {}
    out = {
        "model_type": "modernbert",
        "architectures": ["ModernBertForMaskedLM"],
        **{k: c[k] for k in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")},
        "hidden_activation": c.get("hidden_act", "gelu"),
        "attention_bias": bool(c.get("attn_qkv_bias") or c.get("attn_out_bias")),
        "mlp_bias": bool(c.get("mlp_in_bias") or c.get("mlp_out_bias")),
        "norm_eps": norm.get("eps", 1e-5),
        "norm_bias": bool(norm.get("bias", True)),
        "decoder_bias": bool(c.get("decoder_bias", True)),
        "classifier_activation": c.get("head_pred_act", "gelu"),
        "classifier_bias": bool(c.get("head_pred_bias", False)),
        "classifier_pooling": c.get("pooling_type", "cls"),
        "classifier_dropout": c.get("head_class_dropout", 0.0),
        "layer_types": kinds,
        "local_attention": window if window != -1 else 128,
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": float(base)},
            "sliding_attention": {"rope_type": "default", "rope_theta": float(base if local in (-1, None) else local)},
        },
        "attention_dropout": c.get("attention_probs_dropout_prob", 0.0),
        "embedding_dropout": c.get("embed_dropout_prob", 0.0),
        "mlp_dropout": c.get("mlp_dropout_prob", 0.0),
        "sparse_prediction": bool(c.get("masked_prediction", False)),
        "initializer_range": c.get("init_std", 0.02),
        "initializer_cutoff_factor": c.get("init_cutoff_factor", 2.0),
        "pad_token_id": c.get("pad_token_id"),
    }
    for name in ("bos_token_id", "eos_token_id", "sep_token_id"):
        out[name] = c.get(name)
    out["cls_token_id"] = c.get("bos_token_id")
    if c.get("max_position_embeddings", 512) > 512:
        out["max_position_embeddings"] = c["max_position_embeddings"]
    return out


def refused(c: dict[str, Any]) -> list[str]:
    """One line for each option that has no counterpart."""
    lines = [f"{k}={c[k]!r}: unknown option" for k in sorted(c) if k not in MAPPED | WITHOUT_EFFECT | NEEDED.keys()]
    for name, accepted in NEEDED.items():
        if name in c and c[name] not in accepted:
            lines.append(f"{name}={c[name]!r}: ModernBERT has only {' or '.join(map(repr, accepted))}")
    for part in ("attention", "bert", "mlp"):
        first = c.get(f"initial_{part}_layer")
        if first is not None and first != c.get(f"{part}_layer"):
            lines.append(f"initial_{part}_layer={first!r}: ModernBERT has no other kind of layer at the start")
    width = c.get("hidden_size", 0) // max(c.get("num_attention_heads", 1), 1)
    for name in ("rotary_emb_dim", "local_attn_rotary_emb_dim"):
        if c.get(name) not in (None, width):
            lines.append(f"{name}={c[name]!r}: ModernBERT turns whole heads, {width}")
    window = c.get("sliding_window", -1)
    if window != -1 and (window <= 0 or window % 2):
        lines.append(f"sliding_window={window!r}: ModernBERT's window is even, half of it to each side")
    every = c.get("global_attn_every_n_layers", -1)
    if every != -1 and (every <= 0 or window == -1):
        lines.append(f"global_attn_every_n_layers={every!r} with sliding_window={window!r}: gives no layers")
    if c.get("pooling_type", "cls") not in ("cls", "mean"):
        lines.append(f"pooling_type={c['pooling_type']!r}: ModernBERT has 'cls' and 'mean'")
    extra = set(c.get("norm_kwargs") or {}) - {"eps", "bias"}
    if extra:
        lines.append(f"norm_kwargs has {', '.join(sorted(extra))}: ModernBERT's norms have eps and bias")
    return lines


def convert_tensors(tensors: dict[str, Tensor], research: dict[str, Any], raw: dict[str, Any]) -> dict[str, Tensor]:
    """Tensors under ModernBERT's names; missing halves of one-sided biases are zeros."""
    out = {}
    for name, tensor in tensors.items():
        name = name.removeprefix("module.")
        name = name.removeprefix("model.")
        if name.startswith("bert.encoder.layers."):
            name = "model." + name.removeprefix("bert.encoder.")
        elif name.startswith("bert."):
            name = "model." + name.removeprefix("bert.")
        if name.endswith("rotary_emb.inv_freq"):
            continue
        if research.get("rotary_emb_interleaved") and ".attn.Wqkv." in name:
            tensor = to_halves(tensor, raw["num_attention_heads"])
        out[name] = tensor
    hidden, inner = raw["hidden_size"], raw["intermediate_size"]
    for i in range(raw["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        if raw["attention_bias"]:
            out.setdefault(layer + "attn.Wqkv.bias", torch.zeros(3 * hidden))
            out.setdefault(layer + "attn.Wo.bias", torch.zeros(hidden))
        if raw["mlp_bias"]:
            out.setdefault(layer + "mlp.Wi.bias", torch.zeros(2 * inner))
            out.setdefault(layer + "mlp.Wo.bias", torch.zeros(hidden))
    return out


def to_halves(wqkv: Tensor, heads: int) -> Tensor:
    """q and k rows of each head from neighbouring pairs (0, 1) to halves (0, D/2); the scores do not change."""
    q, k, v = wqkv.chunk(3, dim=0)

    def reorder(t: Tensor) -> Tensor:
        return t.view(heads, -1, 2, *t.shape[1:]).transpose(1, 2).reshape(t.shape)

    return torch.cat([reorder(q), reorder(k), v])
