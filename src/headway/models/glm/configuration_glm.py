from headway.models.glm.modular_glm import GlmConfig  # noqa: F401
