"""Reads the layout of a GGUF file: metadata, then tensor headers, then aligned data, which stays memory-mapped.

    "GGUF"  version u32  tensors u64  pairs u64 | key, type u32, value ... | name, dims, type u32, offset u64 ... | data

Strings are a u64 length and UTF-8 bytes; everything is little-endian. Source: the GGUF specification in ggml's docs. A
vocabulary of 262144 pieces is read in well under a second.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9


@dataclass(frozen=True)
class StoredTensor:
    """shape: as PyTorch has it (rows first). data: its bytes (rows, bytes per row), for `gguf.dequantize` with `kind`."""

    name: str
    shape: tuple[int, ...]
    kind: Any
    data: np.ndarray


class Reader:
    """values: the metadata. tensors: every tensor, in order. Raises ValueError for a file that is cut or no GGUF."""

    def __init__(self, path: Path):
        self.bytes: np.ndarray = np.asarray(np.memmap(path, mode="r")) if path.stat().st_size else np.zeros(0, np.uint8)
        self.view = memoryview(self.bytes)  # type: ignore[arg-type]
        self.at = 0
        if bytes(self.view[:4]) != b"GGUF":
            raise ValueError("it does not begin with 'GGUF'")
        self.at = 4
        try:
            version, tensors, pairs = self.numbers("IQQ")
            if version not in (2, 3):
                raise ValueError(f"version {version} is not 2 or 3")
            self.values: dict[str, Any] = {}
            for _ in range(pairs):
                key = self.string()
                self.values[key] = self.value(*self.numbers("I"))
            headers = [self.header() for _ in range(tensors)]
        except struct.error:
            raise ValueError("its metadata ends early") from None
        alignment = self.values.get("general.alignment", 32)
        start = -(-self.at // alignment) * alignment
        self.tensors = [self.tensor(start, *header) for header in headers]

    def numbers(self, form: str) -> tuple:
        found = struct.unpack_from("<" + form, self.view, self.at)
        self.at += struct.calcsize("<" + form)
        return found

    def string(self) -> str:
        (length,) = self.numbers("Q")
        end = self.at + length
        if end > len(self.view):
            raise ValueError("its metadata ends early")
        text = bytes(self.view[self.at : end]).decode("utf-8", errors="replace")
        self.at = end
        return text

    def value(self, kind: int) -> Any:
        if kind == STRING:
            return self.string()
        if kind == ARRAY:
            inner, count = self.numbers("IQ")
            if count > len(self.view):
                raise ValueError("its metadata ends early")
            return (
                list(self.numbers(f"{count}{SCALARS[inner]}"))
                if inner in SCALARS
                else [self.value(inner) for _ in range(count)]
            )
        if kind not in SCALARS:
            raise ValueError(f"metadata of unknown type {kind}")
        return self.numbers(SCALARS[kind])[0]

    def header(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self.string()
        (dims,) = self.numbers("I")
        if dims > 8:
            raise ValueError(f"tensor {name} has {dims} dimensions")
        shape = self.numbers(f"{dims}Q")
        return name, shape[::-1], *self.numbers("IQ")

    def tensor(self, start: int, name: str, shape: tuple[int, ...], kind: int, offset: int) -> StoredTensor:
        from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

        try:
            known = GGMLQuantizationType(kind)
        except ValueError:
            raise ValueError(f"tensor {name} has unknown type {kind}; a newer gguf package may know it") from None
        block, size = GGML_QUANT_SIZES[known]
        row = (shape[-1] if shape else 1) // block * size
        rows = 1
        for n in shape[:-1]:
            rows *= n
        first = start + offset
        if first + rows * row > len(self.bytes):
            raise ValueError(f"tensor {name} reaches past its end")
        return StoredTensor(name, tuple(shape), known, self.bytes[first : first + rows * row].reshape(rows, row))
