"""The comparison as one self-contained HTML page: a table, and pictures as inline SVG."""

from __future__ import annotations

import html
import math
from pathlib import Path

from headway.comparison.measure import Report, Row
from headway.errors import HeadwayError

STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}"
    "table{border-collapse:collapse;width:100%}td,th{padding:.3rem .6rem;border-bottom:1px solid #ddd;text-align:left;"
    "vertical-align:top}.no{color:#999}svg{margin:.5rem 0 1.5rem}"
)
COLOUR = "#1f77b4"


def write(report: Report, path: Path) -> None:
    """Raises HeadwayError if the file cannot be written; nothing is left half-written."""
    fresh = path.with_name(path.name + ".new")
    try:
        fresh.write_text(page(report), encoding="utf-8")
        fresh.replace(path)
    except OSError as error:
        raise HeadwayError(f"cannot write {path}: {error.strerror or error}") from None


def page(report: Report) -> str:
    """The whole document."""
    ran = [r for r in report.rows if r.accepted]
    kind = "training step" if report.train else "forward pass"
    body = [
        f"<h1>{html.escape(report.model)}</h1>",
        f"<p>{report.parameters:,} parameters, {report.dtype}; one {kind} over {report.tokens} tokens with each attention "
        "backend. Errors are against the same model in float64.</p>",
        table(report.rows),
        "<h2>Speed</h2>",
        bars([(r.backend, r.tokens_per_second or 0.0) for r in ran], "tokens/s"),
        "<h2>Peak memory</h2>",
        bars([(r.backend, r.peak_mib or 0.0) for r in ran], "MiB"),
        "<h2>Error</h2>",
        errors(ran),
        "<h2>Mask</h2>",
        mask(report.mask),
    ]
    title = html.escape(report.model)
    return f"<!doctype html><meta charset=utf-8><title>{title}</title><style>{STYLE}</style>\n" + "\n".join(body) + "\n"


def table(rows: list[Row]) -> str:
    head = "<tr><th>backend<th>tokens/s<th>peak MiB<th>max error<th>mean error<th>to eager<th>top-1<th>notes</tr>"
    lines = []
    for r in rows:
        notes = html.escape("; ".join(r.adaptations if r.accepted else r.reasons))
        if not r.accepted:
            lines.append(f'<tr class="no"><td>{r.backend}<td colspan="6">refused<td>{notes}</tr>')
            continue
        top = "" if r.top1 is None else f"{r.top1:.1%}"
        lines.append(
            f"<tr><td>{r.backend}<td>{r.tokens_per_second or 0:.0f}<td>{r.peak_mib:.1f}<td>{r.max_error:.1e}"
            f"<td>{r.mean_error:.1e}<td>{r.max_difference_to_eager:.1e}<td>{top}<td>{notes}</tr>"
        )
    return f"<table>{head}{''.join(lines)}</table>"


def bars(values: list[tuple[str, float]], unit: str) -> str:
    top = max((v for _, v in values), default=0) or 1.0
    parts = []
    for i, (name, value) in enumerate(values):
        y = 24 * i
        parts.append(
            f'<text x="0" y="{y + 15}">{name}</text><rect x="110" y="{y + 3}" width="{500 * value / top:.0f}" height="16" '
            f'fill="{COLOUR}"/><text x="{116 + 500 * value / top:.0f}" y="{y + 15}">{value:,.1f} {unit}</text>'
        )
    return _svg(760, 24 * len(values), parts)


def errors(rows: list[Row]) -> str:
    """Mean and largest error of each backend on a logarithmic axis."""
    found = [e for r in rows for e in (r.max_error, r.mean_error) if e]
    if not found:
        return "<p>none</p>"
    low, high = math.floor(math.log10(min(found))), math.ceil(math.log10(max(found)))
    span = max(high - low, 1)

    def x(e: float | None) -> float:
        return 110 + 560 * (math.log10(e) - low) / span if e else 110

    parts = [
        f'<line x1="{x(10.0**d)}" x2="{x(10.0**d)}" y1="0" y2="{24 * len(rows)}" stroke="#ddd"/>'
        f'<text x="{x(10.0**d)}" y="{24 * len(rows) + 15}" text-anchor="middle" fill="#888">1e{d}</text>'
        for d in range(low, high + 1)
    ]
    for i, r in enumerate(rows):
        y = 24 * i + 12
        parts.append(
            f'<text x="0" y="{y + 4}">{r.backend}</text><line x1="{x(r.mean_error):.0f}" x2="{x(r.max_error):.0f}" y1="{y}" '
            f'y2="{y}" stroke="{COLOUR}" stroke-width="2"/><circle cx="{x(r.mean_error):.0f}" cy="{y}" r="4" fill="white" '
            f'stroke="{COLOUR}"/><circle cx="{x(r.max_error):.0f}" cy="{y}" r="4" fill="{COLOUR}"/>'
        )
    return _svg(760, 24 * len(rows) + 24, parts)


def mask(drawing: str, size: int = 10) -> str:
    """A mask drawn as `#` and `.`."""
    rows = [line.split() for line in drawing.splitlines()]
    parts = [
        f'<rect x="{size * k}" y="{size * q}" width="{size - 1}" height="{size - 1}" fill="{COLOUR if c == "#" else "#eee"}"/>'
        for q, row in enumerate(rows)
        for k, c in enumerate(row)
    ]
    return _svg(size * max((len(r) for r in rows), default=1), size * max(len(rows), 1), parts)


def _svg(width: float, height: float, parts: list[str]) -> str:
    return f'<svg width="{width}" height="{height}" font-size="13" font-family="sans-serif">{"".join(parts)}</svg>'
