"""The backends, one file each."""

from headway.attention.backends.eager import Eager
from headway.attention.backends.tiled import Tiled

BUILT_IN = (Eager(), Tiled())
