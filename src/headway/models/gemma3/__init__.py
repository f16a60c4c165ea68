"""The Gemma 3 family."""
