from headway.models.gemma3.modular_gemma3 import *  # noqa: F403
