"""Reports from a notebook to `make demo`: one line per result, readable for people and for programs.

A notebook that checks something calls `report("softmax against NumPy", ok=error < 1e-6, detail="largest error 3e-8")`. The reader sees a
line of text. The same output carries the record under its own MIME type, where scripts/demo.py finds it in the executed file. Outside
IPython the line is printed. `report_not_run("a page", "the viewer is missing")` reports a check that this machine cannot make.
"""

from __future__ import annotations

import sys

RESULT_MIME = "application/vnd.blocknb.result+json"


def report(what: str, ok: object, detail: str = "") -> None:
    """Shows one result. `ok` is converted to bool (a NumPy bool is allowed); `detail` holds the numbers with their units."""
    passed = bool(ok)
    _show(f"{'ok' if passed else 'FAILED'}: {what}" + (f" ({detail})" if detail else ""), what, passed, detail)


def report_not_run(what: str, reason: str) -> None:
    """Shows a check that was not made, and the reason: what is missing, and what installs it. It counts neither as ok nor as failed."""
    _show(f"not run: {what} ({reason})", what, None, reason)


def _show(line: str, what: str, ok: bool | None, detail: str) -> None:
    if "IPython" in sys.modules:
        from IPython import get_ipython
        from IPython.display import display

        if get_ipython() is not None:
            record = {"what": what, "ok": ok, "detail": detail}
            display({"text/plain": line, RESULT_MIME: record}, raw=True)
            return
    print(line)
