"""`headway compare`: one model, every backend."""

from __future__ import annotations

import json as json_module
from pathlib import Path

import torch

from headway.attention import masks
from headway.checkpoints.load import load
from headway.comparison.measure import Report, compare
from headway.errors import InputError
from headway.text.load import load_tokenizer

TEXT = (
    "A lighthouse keeper counts ships by their lights. On clear nights there are dozens; in fog he counts by sound, and the "
    "number is never the same twice. He writes both into the book, because the harbour master wants a figure, and a figure "
    "with a doubt beside it is still a figure. In winter the book fills slowly. In spring the fishing boats come back, low in "
    "the water, and the counting starts again before breakfast. "
) * 40


def run(model, text, dtype, backend, train, compiled, tokens, runs, as_json, html) -> Report:
    """Prints the comparison and returns it."""
    from rich.console import Console

    if html is not None and not html.absolute().parent.is_dir():
        raise InputError(f"cannot write {html}: no such folder")
    console = Console(stderr=True)
    loaded = load(model, dtype=dtype)
    inputs = batch(model, text, loaded.config.vocab_size, tokens)
    with console.status("comparing") as status:
        report = compare(
            loaded, str(model), inputs, only=backend, train=train, runs=runs, count_graphs=compiled, progress=status.update
        )
    report.mask = picture(loaded)
    if as_json:
        print(json_module.dumps(report.as_dict(), indent=2))
    else:
        show(report)
    if html is not None:
        from headway.comparison.html import write

        write(report, html)
        print(f"wrote {html}")
    return report


def batch(ref, text: Path | None, vocab_size: int, tokens: int) -> dict[str, torch.Tensor]:
    """Two rows of the text, the second half as long, so that padding plays its part."""
    try:
        words = TEXT if text is None else text.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{text}: cannot be read ({error})") from None
    tokenizer = load_tokenizer(ref)
    limit = min(tokens, tokenizer.max_length or tokens)
    ids = tokenizer.encode([words], truncation="only_first", max_length=limit)[0].input_ids
    if len(ids) < 2:
        raise InputError("the text has fewer than two tokens")
    half = max(len(ids) // 2, 1)
    rows = torch.tensor([ids, ids[:half] + [tokenizer.pad_id] * (len(ids) - half)])
    real = torch.ones_like(rows)
    real[1, half:] = 0
    return {"input_ids": rows, "attention_mask": real}


def picture(model) -> str:
    """The mask of two packed sequences of this model's first windowed layer, or its first layer."""
    name = getattr(model.config, "layer_types", None)
    cu = torch.tensor([0, 16, 24])
    documents = masks.documents.from_cu_seqlens(cu)
    if model.config.model_type in ("bert", "modernbert"):
        band = masks.sliding_bidirectional(radius=4) if name else None
    else:
        band = masks.sliding(total=6) if name else masks.causal()
    return (documents if band is None else documents & band).draw(24, 24)


def show(report: Report) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{report.model}: {report.dtype}, {report.tokens} tokens{', training' if report.train else ''}")
    for column in ("backend", "tokens/s", "peak MiB", "max error", "mean error", "to eager", "top-1", "graphs"):
        table.add_column(column, justify="left" if column == "backend" else "right", no_wrap=True)
    for r in report.rows:
        if r.accepted:
            cells = [f"{r.tokens_per_second or 0:.0f}", f"{r.peak_mib:.1f}", f"{r.max_error:.1e}", f"{r.mean_error:.1e}"]
            cells += [f"{r.max_difference_to_eager:.1e}", "-" if r.top1 is None else f"{r.top1:.1%}"]
            table.add_row(r.backend, *cells, "-" if r.graphs is None else "breaks" if r.graphs < 0 else str(r.graphs))
        else:
            table.add_row(r.backend, "refused", *[""] * 6, style="dim")
    console = Console()
    if console.width < 100:  # a table that wraps cannot be read
        console = Console(width=100)
    console.print(table)
    for r in report.rows:
        for note in r.reasons:
            console.print(f"[dim]{r.backend} refuses: {note}[/dim]", highlight=False)
        for note in r.adaptations:
            console.print(f"[dim]{r.backend}: {note}[/dim]", highlight=False)
