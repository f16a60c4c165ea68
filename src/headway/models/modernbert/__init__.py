"""The ModernBERT family."""
