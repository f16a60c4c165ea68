from headway.models.glm.modular_glm import *  # noqa: F403
