"""Embedding a file: streamed, with progress, and resumable after any kind of end.

Rows go to `<out>.part` as raw float32, and after each flush `<out>.state` says, atomically, how many of them are whole.
A run that starts again cuts the part to what the state says and goes on with the next line. The output itself appears at
the very end.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from headway.encoding.encode import Encoder
from headway.errors import HeadwayError, InputError

FLUSH = 512  # rows between two states


@dataclass(frozen=True)
class Job:
    """source: lines of text, or JSONL with a `field`. target: .npy or .parquet. identity: what else the vectors depend on."""

    source: Path
    target: Path
    identity: str
    field: str = "text"

    @property
    def part(self) -> Path:
        return self.target.with_name(self.target.name + ".part")

    @property
    def state(self) -> Path:
        return self.target.with_name(self.target.name + ".state")

    def fingerprint(self) -> str:
        """Of the input's size and edges and of everything that decides the vectors."""
        size = self.source.stat().st_size
        digest = hashlib.sha256(f"{size}|{self.identity}|{self.field}".encode())
        with open(self.source, "rb") as f:
            digest.update(f.read(65536))
            f.seek(max(size - 65536, 0))
            digest.update(f.read())
        return digest.hexdigest()

    def texts(self) -> Iterator[str]:
        """One text a line."""
        jsonl = self.source.suffix in (".jsonl", ".ndjson")
        with open(self.source, encoding="utf-8") as f:
            for number, line in enumerate(f, 1):
                line = line.rstrip("\n")
                yield self._field(line, number) if jsonl else line

    def _field(self, line: str, number: int) -> str:
        try:
            value = json.loads(line)[self.field]
        except (ValueError, KeyError, TypeError):
            raise InputError(f"{self.source}, line {number}: is no JSON object with a field {self.field!r}") from None
        if not isinstance(value, str):
            raise InputError(f"{self.source}, line {number}: field {self.field!r} is no text")
        return value


def embed_file(encoder: Encoder, job: Job, progress: Callable[[int], None] = lambda rows: None) -> int:
    """Writes one vector a line to the target and returns their number. Raises HeadwayError if it cannot be written."""
    if job.target.suffix not in (".npy", ".parquet"):
        raise InputError(f"'{job.target}': vectors are written as .npy or .parquet")
    if not job.source.is_file():
        raise InputError(f"'{job.source}': no such file")
    if job.target.suffix == ".parquet":
        import importlib.util

        if importlib.util.find_spec("pyarrow") is None:
            raise InputError("writing .parquet needs pyarrow: pip install 'headway[train]'")
    try:
        job.target.parent.mkdir(parents=True, exist_ok=True)
        done = _resume(job, encoder.width)
        progress(done)
        with open(job.part, "ab") as out:
            held: list[np.ndarray] = []
            rows = 0
            for vectors in encoder.stream(islice(job.texts(), done, None)):
                held.append(np.asarray(vectors, dtype=np.float32))
                rows += len(vectors)
                if rows >= FLUSH:
                    done = _flush(job, out, held, done)
                    progress(done)
                    held, rows = [], 0
            done = _flush(job, out, held, done)
            progress(done)
        _finish(job, done, encoder.width)
    except OSError as error:
        raise HeadwayError(f"cannot write {job.target}: {error.strerror or error}") from None
    return done


def _resume(job: Job, width: int) -> int:
    """Rows that are whole already; the part is cut to them."""
    whole = 0
    if job.state.is_file() and job.part.is_file():
        state = json.loads(job.state.read_text())
        if state.get("fingerprint") == job.fingerprint():
            whole = min(state["rows"], job.part.stat().st_size // (4 * width))
    with open(job.part, "ab") as f:
        f.truncate(whole * 4 * width)
    return whole


def _flush(job: Job, out, held: list[np.ndarray], done: int) -> int:
    for rows in held:
        out.write(rows.tobytes())
        done += len(rows)
    out.flush()
    os.fsync(out.fileno())
    fresh = job.state.with_name(job.state.name + ".new")
    fresh.write_text(json.dumps({"rows": done, "fingerprint": job.fingerprint()}))
    os.replace(fresh, job.state)
    return done


def _finish(job: Job, rows: int, width: int) -> None:
    data = np.memmap(job.part, dtype=np.float32, mode="r", shape=(rows, width)) if rows else np.zeros((0, width), np.float32)
    fresh = job.target.with_name(job.target.name + ".new")
    if job.target.suffix == ".npy":
        with open(fresh, "wb") as f:
            np.save(f, data)
    else:
        _write_parquet(fresh, data)
    os.replace(fresh, job.target)
    job.part.unlink()
    job.state.unlink()


def _write_parquet(path: Path, data: np.ndarray, group: int = 65536) -> None:
    """One column `embedding`, lists of floats, in row order."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    width = data.shape[1]
    schema = pa.schema([("embedding", pa.list_(pa.float32(), width))])
    with pq.ParquetWriter(path, schema) as writer:
        for at in range(0, len(data), group):
            rows = np.ascontiguousarray(data[at : at + group]).ravel()
            writer.write_table(pa.table([pa.FixedSizeListArray.from_arrays(pa.array(rows), width)], schema=schema))
