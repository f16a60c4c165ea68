"""Pictures of masks."""

from __future__ import annotations

from headway.attention.masks.expr import Mask


def draw(mask: Mask, q_len: int, kv_len: int, **call) -> str:
    """One line per query, `#` = attends, `.` = does not; batch row 0, head 0."""
    return draw_bound(mask.bind(q_len, kv_len, **call))


def draw_bound(bound) -> str:
    kept = bound.to_bool()[0, 0].tolist()
    return "\n".join(" ".join("#" if k else "." for k in row) for row in kept)


def draw_png(mask: Mask, q_len: int, kv_len: int, path, *, scale: int = 8, **call) -> None:
    """Writes the mask of batch row 0, head 0 as a PNG, `scale` pixels an entry. Standard library only."""
    import struct
    import zlib

    kept = mask.bind(q_len, kv_len, **call).to_bool()[0, 0].tolist()
    rows = []
    for row in kept:
        line = b"\0" + b"".join((b"\x1f\x77\xb4" if k else b"\xee\xee\xee") * scale for k in row)
        rows.extend([line] * scale)

    def part(tag: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + tag + data + struct.pack(">I", zlib.crc32(tag + data))

    header = struct.pack(">IIBBBBB", kv_len * scale, q_len * scale, 8, 2, 0, 0, 0)
    body = part(b"IHDR", header) + part(b"IDAT", zlib.compress(b"".join(rows))) + part(b"IEND", b"")
    with open(path, "wb") as f:
        f.write(b"\x89PNG\r\n\x1a\n" + body)
