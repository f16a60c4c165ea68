"""The Bert family."""
