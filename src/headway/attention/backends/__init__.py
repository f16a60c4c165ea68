"""The backends, one file each."""

from headway.attention.backends.eager import Eager

BUILT_IN = (Eager(),)
