"""`headway.load_tokenizer`: a tokenizer from a folder in Hugging Face layout, or from a GGUF file's metadata."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from headway.checkpoints.resolve import Source, resolve
from headway.errors import CheckpointError, TokenizerError
from headway.text.tokenizer import Tokenizer

SPECIAL = ("bos_token", "eos_token", "pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
CUSTOMARY = {  # special tokens of vocabularies that come without a description, by what the vocabulary must hold
    "[CLS]": {"unk_token": "[UNK]", "sep_token": "[SEP]", "pad_token": "[PAD]", "cls_token": "[CLS]", "mask_token": "[MASK]"},
    "<|endoftext|>": dict.fromkeys(("bos_token", "eos_token", "unk_token"), "<|endoftext|>"),
}
TYPED = ("bert",)  # model types that take token_type_ids


def load_tokenizer(ref: str | Path, *, revision: str | None = None, add_prefix_space: bool | None = None) -> Tokenizer:
    """The tokenizer of the model behind `ref` (see `headway.load`).

    add_prefix_space: for byte-level tokenizers, whether a text (or each pre-split word) gets a space before it.
    Raises TokenizerError if there is none, or it is damaged.
    """
    source = resolve(ref, revision)
    if source.is_gguf and not (source.folder / "tokenizer.json").is_file():
        from headway.text.from_gguf import tokenizer_from_gguf

        return tokenizer_from_gguf(source.weights)  # type: ignore[arg-type]
    return _from_folder(source, add_prefix_space)


def _from_folder(source: Source, add_prefix_space: bool | None) -> Tokenizer:
    folder = source.folder
    config = _json(folder / "tokenizer_config.json") or {}
    extra = _json(folder / "special_tokens_map.json") or {}
    model = _json(folder / "config.json") or {}
    special = {}
    for name in SPECIAL:
        value = config.get(name, extra.get(name))
        if value is not None:
            special[name] = value["content"] if isinstance(value, dict) else value
    core = _core(folder, config)
    if not (folder / "tokenizer.json").is_file():
        for word, customary in CUSTOMARY.items():
            if core.token_to_id(word) is not None:
                special = {**customary, **special}
        added = _json(folder / "added_tokens.json") or {}
        core.add_tokens([t for t in sorted(added, key=added.__getitem__) if core.token_to_id(t) is None])
    _keep_whole(core, special.values())
    if add_prefix_space is not None:
        core = _prefixed(core, add_prefix_space)
    template = config.get("chat_template")
    if isinstance(template, list):  # several by name
        named = {t["name"]: t["template"] for t in template}
        template = named.get("default") or next(iter(named.values()), None)
    if (folder / "chat_template.jinja").is_file():
        template = (folder / "chat_template.jinja").read_text()
    limit = config.get("model_max_length")
    positions = model.get("max_position_embeddings") or model.get("n_positions")
    if not isinstance(limit, int) or limit > 10**9:
        limit = positions
    names = config.get("model_input_names")
    typed = "token_type_ids" in names if names and model.get("model_type") is None else model.get("model_type") in TYPED
    return Tokenizer(core, special, template, limit, config.get("padding_side", "right"), typed)


def _core(folder: Path, config: dict[str, Any]):
    import tokenizers

    if (folder / "tokenizer.json").is_file():
        try:
            return tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        except Exception as error:
            raise TokenizerError(f"{folder / 'tokenizer.json'}: cannot be read ({error})") from None
    if (folder / "vocab.txt").is_file():
        from tokenizers import BertWordPieceTokenizer

        lower, accents = config.get("do_lower_case", True), config.get("strip_accents")
        try:
            return BertWordPieceTokenizer(str(folder / "vocab.txt"), lowercase=lower, strip_accents=accents)._tokenizer
        except Exception as error:
            raise TokenizerError(f"{folder / 'vocab.txt'}: is no WordPiece vocabulary ({error})") from None
    if (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file():
        from tokenizers import ByteLevelBPETokenizer

        files, space = (str(folder / "vocab.json"), str(folder / "merges.txt")), config.get("add_prefix_space", False)
        try:
            return ByteLevelBPETokenizer(*files, add_prefix_space=space)._tokenizer
        except Exception as error:
            raise TokenizerError(f"{folder / 'vocab.json'}: is no byte-level vocabulary ({error})") from None
    raise TokenizerError(f"'{folder}' has no tokenizer; looked for tokenizer.json, vocab.txt, vocab.json with merges.txt")


def _keep_whole(core, texts: Iterable[str]) -> None:
    """Special tokens that the vocabulary holds are found in a text as they are, not taken apart."""
    from tokenizers import AddedToken

    known = {t.content for t in core.get_added_tokens_decoder().values()}
    new = [t for t in dict.fromkeys(texts) if t not in known and core.token_to_id(t) is not None]
    core.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in new])


def _prefixed(core, add: bool):
    """The same tokenizer with or without a space before texts and words."""
    import tokenizers

    described = json.loads(core.to_str())
    pre = described.get("pre_tokenizer") or {}
    for part in pre.get("pretokenizers", [pre]):
        if part.get("type") == "ByteLevel":
            part["add_prefix_space"] = add
    return tokenizers.Tokenizer.from_str(json.dumps(described))


def _json(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{path}: is no valid JSON ({error})") from None
    if not isinstance(found, dict):
        raise CheckpointError(f"{path}: holds no JSON object")
    return found
