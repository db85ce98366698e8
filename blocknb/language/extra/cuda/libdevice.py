"""libdevice, at the path from which Triton's kernels import it."""

from blocknb.language.libdevice import *  # noqa: F403
from blocknb.language.libdevice import __all__  # noqa: F401
