"""One attention call for every transformer, on every backend, with the same meaning everywhere."""

__version__ = "0.1.0"
