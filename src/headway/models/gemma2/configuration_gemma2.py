from headway.models.gemma2.modular_gemma2 import Gemma2Config  # noqa: F401
