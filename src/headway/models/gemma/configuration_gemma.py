from headway.models.gemma.modular_gemma import GemmaConfig  # noqa: F401
