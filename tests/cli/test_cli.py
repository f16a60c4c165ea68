"""The command line as a user runs it: output, one-line errors, exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.models.families import build

SCRIPT = Path(sys.executable).parent / "headway"


def headway(*args, **kw):
    return subprocess.run([str(SCRIPT), *map(str, args)], capture_output=True, text=True, **kw)


def refused(*args):
    """One clear line on stderr, exit code 2, no traceback."""
    done = headway(*args)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Traceback" not in done.stderr and done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
    return done.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny Llama with a tokenizer of its own."""
    import tokenizers

    path = tmp_path_factory.mktemp("llama") / "model"
    build("llama", "causal-lm")[0].save_pretrained(path)
    words = {w: i for i, w in enumerate(["<pad>", "<s>", "</s>", "a", "b", "c", "[UNK]", *(f"w{i}" for i in range(90))])}
    core = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    core.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    core.save(str(path / "tokenizer.json"))
    return path


def test_mask():
    done = headway("mask", "causal() & sliding(total=2) | prefix(1)", "-q", 3)
    assert done.returncode == 0 and done.stdout == "# . .\n# # .\n# # #\n"
    assert "no mask" in refused("mask", "__import__('os')")
    assert "no expression" in refused("mask", "causal(")
    assert ">= 1" in refused("mask", "sliding(total=0)")


def test_mask_png(tmp_path):
    assert headway("mask", "causal()", "--png", tmp_path / "m.png").returncode == 0
    assert (tmp_path / "m.png").read_bytes().startswith(b"\x89PNG")
    assert "cannot write" in refused("mask", "causal()", "--png", tmp_path / "no" / "m.png")


def test_explain_shapes_and_model(folder):
    done = headway("explain", "--mask", "causal()", "--softcap", 50)
    assert "attention: tiled (auto)" in done.stdout and "sdpa has no soft cap" in done.stdout
    assert "attention: eager (asked for 'eager')" in headway("explain", folder, "--attention", "eager", "--q-len", 8).stdout
    assert "known" in refused("explain", "--attention", "flash99")


def test_compare(folder, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("a b c w1 w2 " * 20)
    page = tmp_path / "report.html"
    call = ("compare", folder, "--text", text, "--tokens", 24, "--runs", 1)
    done = headway(
        *call, "--json", "--html", page, "--compile", "--backend", "eager", "--backend", "tiled", "--backend", "sdpa:cudnn"
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout[: done.stdout.rindex("}") + 1])
    rows = {r["backend"]: r for r in report["rows"]}
    assert report["tokens"] == 36 and rows["tiled"]["accepted"] and rows["tiled"]["max_error"] < 1e-5
    assert not rows["sdpa:cudnn"]["accepted"] and len(rows["sdpa:cudnn"]["reasons"]) >= 2
    assert 1 <= rows["eager"]["graphs"] <= 2 and rows["eager"]["peak_mib"] > 0 and rows["eager"]["tokens_per_second"] > 0
    html = page.read_text()
    assert html.count("<svg") == 4 and "src=" not in html and "href=" not in html
    trained = headway(*call, "--train", "--json", "--backend", "tiled")
    assert json.loads(trained.stdout)["rows"][0]["max_error"] < 1e-4
    assert "cannot be read" in refused("compare", folder, "--text", tmp_path / "none.txt")
    assert "no such folder" in refused("compare", folder, "--html", tmp_path / "no" / "r.html")


def test_generate(folder):
    done = headway("generate", folder, "a b c", "-n", 4)
    assert done.returncode == 0 and done.stdout.strip()
    assert headway("generate", folder, "-", "-n", 4, input="a b c").stdout == done.stdout
    assert "temperature" in refused("generate", folder, "a", "--temperature", -1)
    assert "no model" in refused("generate", folder / "nothing", "a")
    assert "chat template" in refused("generate", folder, "a", "--chat")
    assert "known: auto" in refused("generate", folder, "a", "--attention", "flash99")
    assert "sdpa:cudnn runs on cuda" in refused("generate", folder, "a", "--attention", "sdpa:cudnn")


def test_embed(folder, tmp_path):
    source, target = tmp_path / "lines.txt", tmp_path / "out.npy"
    source.write_text("a b\nc\nw1 w2 w3\n")
    done = headway("embed", folder, source, target, "--pooling", "mean")
    assert done.returncode == 0, done.stderr
    assert np.load(target).shape == (3, 32)
    assert ".npy or .parquet" in refused("embed", folder, source, tmp_path / "out.txt")
    assert "no such file" in refused("embed", folder, tmp_path / "none", target)
    assert "pooling" in refused("embed", folder, source, target, "--pooling", "max")


def test_models_lists_every_family():
    from headway.models.registry import FAMILIES

    out = headway("models", env={"COLUMNS": "200", "PATH": "/usr/bin"}).stdout
    assert all(kind in out for kind in FAMILIES)


def test_tasks(tmp_path):
    import tokenizers
    from tokenizers.processors import TemplateProcessing

    words = {w: i for i, w in enumerate(["[PAD]", "[CLS]", "[SEP]", "[MASK]", "[UNK]", *(f"w{i}" for i in range(92))])}
    core = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    core.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    core.add_special_tokens(["[PAD]", "[CLS]", "[SEP]", "[MASK]"])
    core.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    for task in ("masked-lm", "sequence-classification", "token-classification"):
        build("bert", task)[0].save_pretrained(tmp_path / task)
        core.save(str(tmp_path / task / "tokenizer.json"))
        (tmp_path / task / "tokenizer_config.json").write_text(json.dumps({"mask_token": "[MASK]", "pad_token": "[PAD]"}))
    out = headway("fill-mask", tmp_path / "masked-lm", "w1 [MASK] w3", "--top", 3)
    assert out.returncode == 0 and len(out.stdout.splitlines()) == 3, out.stderr
    assert "no mask" in refused("fill-mask", tmp_path / "masked-lm", "w1 w2")
    out = headway("classify", tmp_path / "sequence-classification", "w1 w2", "w3")
    assert abs(sum(float(line.split()[0]) for line in out.stdout.splitlines()) - 1) < 0.01, out.stderr
    out = headway("tag", tmp_path / "token-classification", "w1 w2 w3")
    assert [line.split("\t")[0] for line in out.stdout.splitlines()] == ["w1", "w2", "w3"], out.stderr


def test_convert_refuses_what_it_cannot(folder, tmp_path):
    assert "no GGUF" in refused("convert", "gguf", folder, tmp_path / "out")
    assert "no such file" in refused("convert", "flexbert", tmp_path / "none.pt", tmp_path / "out")
    torch.save({"a": torch.zeros(1)}, tmp_path / "x.pt")
    assert "no composer checkpoint" in refused("convert", "flexbert", tmp_path / "x.pt", tmp_path / "out")
    assert not (tmp_path / "out").exists()
