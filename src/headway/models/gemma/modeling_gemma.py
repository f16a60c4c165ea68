from headway.models.gemma.modular_gemma import *  # noqa: F403
