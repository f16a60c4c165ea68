"""Vectors from texts, without padding."""

from headway.encoding.encode import Encoder, encode

__all__ = ["Encoder", "encode"]
