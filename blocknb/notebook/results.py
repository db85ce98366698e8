"""Reports from a notebook to `make demo`: one line per result, readable for people and for programs.

A notebook that checks something calls `report("softmax against NumPy", ok=error < 1e-6, detail="largest error 3e-8")`. The reader sees a
line of text. The same output carries the record under its own MIME type, where scripts/demo.py finds it in the executed file. Outside
IPython the line is printed.
"""

from __future__ import annotations

import sys

RESULT_MIME = "application/vnd.blocknb.result+json"


def report(what: str, ok: object, detail: str = "") -> None:
    """Shows one result. `ok` is converted to bool (a NumPy bool is allowed); `detail` holds the numbers with their units."""
    passed = bool(ok)
    line = f"{'ok' if passed else 'FAILED'}: {what}" + (f" ({detail})" if detail else "")
    if "IPython" in sys.modules:
        from IPython import get_ipython
        from IPython.display import display

        if get_ipython() is not None:
            record = {"what": what, "ok": passed, "detail": detail}
            display({"text/plain": line, RESULT_MIME: record}, raw=True)
            return
    print(line)
