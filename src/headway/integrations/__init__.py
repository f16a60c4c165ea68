"""Headway inside other libraries. Nothing here is imported unless asked for."""
