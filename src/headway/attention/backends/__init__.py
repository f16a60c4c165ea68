"""The backends, one file each."""

from headway.attention.backends.eager import Eager
from headway.attention.backends.flex import Flex
from headway.attention.backends.sdpa import KERNELS, Sdpa
from headway.attention.backends.tiled import Tiled

BUILT_IN = (Sdpa(), *(Sdpa(kernel) for kernel in KERNELS), Flex(), Tiled(), Eager())
