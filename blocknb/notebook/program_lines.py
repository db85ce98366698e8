"""Names of the files that lines of the user's program are in, as people know them."""

from __future__ import annotations

import re
import sys


def named(file: str) -> str:
    """ "In[3]" for the code of a cell, as in IPython's tracebacks; the name of another file without its folders."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    known = shell.compile.format_code_name(file) if shell is not None else None
    if known:
        return str(known[1])
    return "cell" if re.search(r"/ipykernel_\d+/\d+\.py$", file) else file.rsplit("/", 1)[-1]  # of another process
