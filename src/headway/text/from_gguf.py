"""A tokenizer from the metadata of a GGUF file.

Two kinds are known: `gpt2`, byte-level BPE with a named way of cutting text into words, and `llama`, SentencePiece BPE,
whose merges follow from the pieces' scores.
"""

from __future__ import annotations

from pathlib import Path

from headway.checkpoints.gguf import GGUFFile
from headway.errors import TokenizerError
from headway.text.tokenizer import Tokenizer

NORMAL, CONTROL, USER_DEFINED = 1, 3, 4

LLAMA3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2_WORDS = LLAMA3_WORDS.replace(r"\p{N}{1,3}", r"\p{N}")
REGEXES = {"llama-bpe": LLAMA3_WORDS, "llama3": LLAMA3_WORDS, "qwen2": QWEN2_WORDS}
DIGITS = ("smollm", "starcoder", "refact", "command-r")
PLAIN = ("default", "gpt-2", "gpt2")


def tokenizer_from_gguf(path: Path) -> Tokenizer:
    """Raises TokenizerError for a kind that is not known."""
    file = GGUFFile(path)
    kind = file.value("tokenizer.ggml.model")
    pieces = file.value("tokenizer.ggml.tokens")
    if kind not in ("gpt2", "llama") or not pieces:
        raise TokenizerError(f"{path}: unknown tokenizer kind {kind!r}; known: gpt2, llama")
    types = file.value("tokenizer.ggml.token_type") or [NORMAL] * len(pieces)
    core = (_byte_level if kind == "gpt2" else _sentencepiece)(file, pieces, types)
    _add_special(core, pieces, types)
    special = {}
    for name, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"), ("unk", "unknown")):
        found = file.value(f"tokenizer.ggml.{key}_token_id")
        if found is not None and found < len(pieces):
            special[f"{name}_token"] = pieces[found]
    default_bos = kind == "llama"
    adds_bos = file.value("tokenizer.ggml.add_bos_token", default_bos) and "bos_token" in special
    adds_eos = file.value("tokenizer.ggml.add_eos_token", False) and "eos_token" in special
    if adds_bos or adds_eos:
        _frame(core, special["bos_token"] if adds_bos else None, special["eos_token"] if adds_eos else None)
    return Tokenizer(
        core, special, file.value("tokenizer.chat_template"), file.value(f"{file.name}.context_length"), padding_side="left"
    )


def _byte_level(file: GGUFFile, pieces: list[str], types: list[int]):
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    merges = [tuple(m.split(" ", 1)) for m in file.value("tokenizer.ggml.merges") or []]
    core = Tokenizer(models.BPE({p: i for i, p in enumerate(pieces)}, merges, ignore_merges=False))
    name = file.value("tokenizer.ggml.pre", "default")
    space = bool(file.value("tokenizer.ggml.add_space_prefix", False))
    if name in DIGITS:
        steps = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=space)]
    elif name in REGEXES:
        core.model.ignore_merges = True
        cut = pre_tokenizers.Split(Regex(REGEXES[name]), "isolated")
        steps = [cut, pre_tokenizers.ByteLevel(add_prefix_space=space, use_regex=False)]
    elif name in PLAIN:
        steps = [pre_tokenizers.ByteLevel(add_prefix_space=space)]
    else:
        known = ", ".join((*DIGITS, *REGEXES, *PLAIN))
        raise TokenizerError(f"{file.path}: unknown pre-tokenizer {name!r}; known: {known}")
    core.pre_tokenizer = pre_tokenizers.Sequence(steps)
    core.decoder = decoders.ByteLevel()
    return core


def _sentencepiece(file: GGUFFile, pieces: list[str], types: list[int]):
    from tokenizers import Tokenizer, decoders, models, normalizers

    scores = file.value("tokenizer.ggml.scores") or [-float(i) for i in range(len(pieces))]
    vocab = {p: i for i, p in enumerate(pieces)}
    unknown = file.value("tokenizer.ggml.unknown_token_id")
    core = Tokenizer(
        models.BPE(
            vocab,
            _merges(pieces, scores, types, vocab),
            unk_token=None if unknown is None else pieces[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    space = bool(file.value("tokenizer.ggml.add_space_prefix", True))
    steps = [normalizers.Prepend("▁")] if space else []
    core.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", "▁")])
    ends = [decoders.Strip(" ", 1, 0)] if space else []
    core.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *ends])
    return core


def _merges(pieces: list[str], scores: list[float], types: list[int], vocab: dict[str, int]) -> list[tuple[str, str]]:
    """Pairs whose joint is a piece, best score first: the order in which SentencePiece would merge them."""
    found = []
    for i, piece in enumerate(pieces):
        if types[i] not in (NORMAL, USER_DEFINED) or len(piece) < 2:
            continue
        pairs = [(piece[:n], piece[n:]) for n in range(1, len(piece)) if piece[:n] in vocab and piece[n:] in vocab]
        pairs.sort(key=lambda p: (vocab[p[0]], vocab[p[1]]))
        found += [(-scores[i], i, *pair) for pair in pairs]
    found.sort(key=lambda f: (f[0], f[1]))
    return [(left, right) for _, _, left, right in found]


def _add_special(core, pieces: list[str], types: list[int]) -> None:
    from tokenizers import AddedToken

    control = [AddedToken(p, normalized=False, special=True) for p, t in zip(pieces, types) if t == CONTROL]
    # a run of spaces is looked for where spaces have become what the pieces are made of, as SentencePiece does
    spaces = core.normalizer is not None and core.normalizer.normalize_str("  ") == "▁▁"
    defined = [
        AddedToken(p, normalized=spaces and not p.strip(" "), special=False) for p, t in zip(pieces, types) if t == USER_DEFINED
    ]
    core.add_special_tokens(control)
    core.add_tokens(defined)


def _frame(core, bos: str | None, eos: str | None) -> None:
    from tokenizers import processors

    before, after = f"{bos} " if bos else "", f" {eos}" if eos else ""
    named = [(t, core.token_to_id(t)) for t in (bos, eos) if t]
    core.post_processor = processors.TemplateProcessing(
        single=f"{before}$A{after}", pair=f"{before}$A{after} {before}$B:1{after}", special_tokens=named
    )
