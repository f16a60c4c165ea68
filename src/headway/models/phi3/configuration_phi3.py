from headway.models.phi3.modular_phi3 import Phi3Config  # noqa: F401
