"""The Phi-3 family."""
