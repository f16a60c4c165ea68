from headway.models.gemma2.modular_gemma2 import *  # noqa: F403
