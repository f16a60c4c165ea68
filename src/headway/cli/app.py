"""All commands in one place; each does its imports when it runs, so that help is quick."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Optional

import typer

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False, help=(
    "One attention call for every transformer, on every backend, with the same meaning everywhere."))  # fmt: skip
convert_app = typer.Typer(no_args_is_help=True, help="Convert checkpoints to Hugging Face folders.")
app.add_typer(convert_app, name="convert")

Model = Annotated[str, typer.Argument(help="folder, .gguf file, package:NAME/path, or hub id")]
Attention = Annotated[str, typer.Option("--attention", help="attention backend, or auto")]
Dtype = Annotated[Optional[str], typer.Option("--dtype", help="fp32, bf16, fp16 or fp64; the checkpoint's by default")]  # noqa: UP045


@app.command()
def compare(
    model: Model,
    text: Annotated[Optional[Path], typer.Option("--text", help="file with the text to run; a built-in one by default")] = None,  # noqa: UP045
    dtype: Dtype = None,
    backend: Annotated[Optional[list[str]], typer.Option("--backend", help="only these; may be repeated")] = None,  # noqa: UP045
    train: Annotated[bool, typer.Option("--train", help="forward and backward, with gradients compared")] = False,
    compiled: Annotated[bool, typer.Option("--compile", help="also count the graphs of a compiled run")] = False,
    tokens: Annotated[int, typer.Option("--tokens", help="tokens of text to run")] = 256,
    runs: Annotated[int, typer.Option("--runs", help="timed runs of each backend, interleaved")] = 5,
    json_: Annotated[bool, typer.Option("--json", help="print JSON instead of a table")] = False,
    html: Annotated[Optional[Path], typer.Option("--html", help="write a self-contained report with pictures")] = None,  # noqa: UP045
):
    """Run a model with every attention backend: who accepts, how fast, how exact, how much memory."""
    from headway.cli.compare import run

    run(model, text, dtype, backend, train, compiled, tokens, runs, json_, html)


@app.command()
def explain(
    model: Annotated[Optional[str], typer.Argument(help="a model; or give shapes with the options")] = None,  # noqa: UP045
    attention: Attention = "auto",
    q_len: Annotated[int, typer.Option("--q-len")] = 512,
    kv_len: Annotated[Optional[int], typer.Option("--kv-len")] = None,  # noqa: UP045
    heads: Annotated[int, typer.Option("--heads")] = 12,
    kv_heads: Annotated[Optional[int], typer.Option("--kv-heads")] = None,  # noqa: UP045
    head_dim: Annotated[int, typer.Option("--head-dim")] = 64,
    dtype: Annotated[str, typer.Option("--dtype")] = "fp32",
    device: Annotated[str, typer.Option("--device")] = "cpu",
    mask: Annotated[Optional[str], typer.Option("--mask", help="mask expression, as for `headway mask`")] = None,  # noqa: UP045
    softcap: Annotated[Optional[float], typer.Option("--softcap")] = None,  # noqa: UP045
    train: Annotated[bool, typer.Option("--train")] = False,
):
    """Say which backend would run and why, for a model or for shapes, before anything runs."""
    from headway.cli.explain import run

    run(model, attention, q_len, kv_len, heads, kv_heads, head_dim, dtype, device, mask, softcap, train)


@app.command()
def mask(
    expression: Annotated[str, typer.Argument(help='such as "causal() & sliding(total=3) | prefix(2)"')],
    q_len: Annotated[int, typer.Option("--q-len", "-q")] = 8,
    kv_len: Annotated[Optional[int], typer.Option("--kv-len", "-k")] = None,  # noqa: UP045
    png: Annotated[Optional[Path], typer.Option("--png", help="write a picture")] = None,  # noqa: UP045
):
    """Draw a mask expression."""
    from headway.cli.mask import run

    run(expression, q_len, kv_len, png)


@app.command()
def generate(
    model: Model,
    prompt: Annotated[str, typer.Argument(help="the prompt, or - for standard input")],
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", "-n")] = 128,
    temperature: Annotated[float, typer.Option("--temperature", "-t", help="0 is greedy")] = 0.0,
    top_k: Annotated[Optional[int], typer.Option("--top-k")] = None,  # noqa: UP045
    top_p: Annotated[Optional[float], typer.Option("--top-p")] = None,  # noqa: UP045
    min_p: Annotated[Optional[float], typer.Option("--min-p")] = None,  # noqa: UP045
    repetition_penalty: Annotated[float, typer.Option("--repetition-penalty")] = 1.0,
    seed: Annotated[Optional[int], typer.Option("--seed")] = None,  # noqa: UP045
    stop: Annotated[Optional[list[str]], typer.Option("--stop", help="end before this text; may be repeated")] = None,  # noqa: UP045
    chat: Annotated[bool, typer.Option("--chat", help="put the prompt into the model's chat format")] = False,
    beams: Annotated[int, typer.Option("--beams")] = 1,
    attention: Attention = "auto",
    dtype: Dtype = None,
):
    """Continue a prompt, printing as it goes."""
    from headway.checkpoints.load import load
    from headway.generation import Settings, generate_text, stream_text
    from headway.text.load import load_tokenizer

    settings = Settings(
        max_new_tokens=max_new_tokens, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, beams=beams,
        repetition_penalty=repetition_penalty, seed=seed,
    )  # fmt: skip
    loaded, tokenizer = load(model, task="causal-lm", attention=attention, dtype=dtype), load_tokenizer(model)
    text = sys.stdin.read() if prompt == "-" else prompt
    if chat:
        text = tokenizer.chat([{"role": "user", "content": text}])
    if beams > 1:
        print((generate_text(loaded, tokenizer, [text], settings, stop=stop or ()).texts or [""])[0])
        return
    for piece in stream_text(loaded, tokenizer, text, settings, stop=stop or ()):
        print(piece, end="", flush=True)
    print()


@app.command()
def embed(
    model: Model,
    source: Annotated[Path, typer.Argument(help="file of lines, or JSONL")],
    target: Annotated[Path, typer.Argument(help=".npy or .parquet to write")],
    field: Annotated[str, typer.Option("--field", help="of the JSON objects")] = "text",
    pooling: Annotated[Optional[str], typer.Option("--pooling", help="cls, mean or last; as the model says by default")] = None,  # noqa: UP045
    normalize: Annotated[Optional[bool], typer.Option("--normalize/--no-normalize")] = None,  # noqa: UP045
    budget: Annotated[Optional[int], typer.Option("--budget", help="tokens in one forward pass")] = None,  # noqa: UP045
    attention: Attention = "auto",
    dtype: Dtype = None,
):
    """One vector for each line of a file. A run that was interrupted goes on where it stood."""
    from headway.cli.embed import run

    run(model, source, target, field, pooling, normalize, budget, attention, dtype)


@app.command()
def models():
    """List model families, their tasks, and the attention features they need."""
    from headway.cli.models import run

    run()


@app.command("fill-mask")
def fill_mask(model: Model, text: str, top: Annotated[int, typer.Option("--top")] = 5, attention: Attention = "auto"):
    """Guess the masked word of a text; write the mask as [MASK] or as the tokenizer's own."""
    from headway.cli.tasks import fill_mask as run

    run(model, text, top, attention)


@app.command()
def classify(model: Model, text: str, pair: Annotated[Optional[str], typer.Argument()] = None, attention: Attention = "auto"):  # noqa: UP045
    """Classify a text, or a pair of texts."""
    from headway.cli.tasks import classify as run

    run(model, text, pair, attention)


@app.command()
def tag(model: Model, text: str, attention: Attention = "auto"):
    """Label the words of a text."""
    from headway.cli.tasks import tag as run

    run(model, text, attention)


@convert_app.command("gguf")
def convert_gguf(source: str, target: Path, dtype: Dtype = None):
    """A GGUF file as a Hugging Face folder, dequantised."""
    from headway.checkpoints.convert import convert_gguf as run

    run(source, target, dtype)
    print(f"wrote {target}")


@convert_app.command("flexbert")
def convert_flexbert(
    source: Path,
    target: Path,
    config: Annotated[Optional[Path], typer.Option("--config", help="the research config as JSON")] = None,  # noqa: UP045
):
    """A research ModernBERT checkpoint (composer .pt, or safetensors) as a Hugging Face folder."""
    from headway.checkpoints.flexbert import convert_flexbert as run

    run(source, target, config=config)
    print(f"wrote {target}")
