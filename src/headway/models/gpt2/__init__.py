"""The GPT-2 family."""
