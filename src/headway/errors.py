"""Errors that a user can act on. The command line prints their text in one line and exits with code 2."""

from __future__ import annotations


class HeadwayError(Exception):
    """Something given to Headway cannot be used as it is; the text says what, and what to do."""


class InputError(HeadwayError, ValueError):
    """Input to a model or a tool has a wrong shape, dtype or value."""


class CheckpointError(HeadwayError):
    """A checkpoint is missing, damaged, or does not fit its model."""


class TokenizerError(HeadwayError):
    """A tokenizer is missing, damaged, or cannot do what was asked."""
