"""`headway embed`: one vector a line, with a progress bar."""

from __future__ import annotations

from headway.encoding import Encoder
from headway.encoding.files import Job, embed_file


def _lines(path) -> int:
    with open(path, "rb") as f:
        return sum(1 for _ in f)


def run(model, source, target, field, pooling, normalize, budget, attention, dtype) -> None:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    asked = {"pooling": pooling, "normalize": normalize, "budget": budget, "dtype": dtype}
    given = {k: v for k, v in asked.items() if v is not None}
    encoder = Encoder.load(model, attention=attention, **given)
    identity = repr((model, encoder.pooling, encoder.normalize, dtype))
    job = Job(source, target, identity, field)
    total = _lines(source) if source.is_file() else None
    columns = (TextColumn("embedding"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, transient=False) as bar:
        task = bar.add_task("embedding", total=total)
        rows = embed_file(encoder, job, lambda done: bar.update(task, completed=done))
    print(f"wrote {rows} vectors of {encoder.width} to {target}")
