from headway.models.phi3.modular_phi3 import *  # noqa: F403
