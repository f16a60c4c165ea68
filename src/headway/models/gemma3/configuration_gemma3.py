from headway.models.gemma3.modular_gemma3 import Gemma3TextConfig  # noqa: F401
