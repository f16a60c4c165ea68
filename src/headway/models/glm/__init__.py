"""The GLM family."""
