"""The document of a kernel as a widget: what all views of the kernel refer to.

ipywidgets synchronizes each trait of a widget with the page. A document has up to some hundred kilobytes, so it is not a trait of each
view. It is one trait of bytes here (JSON, compressed by gzip), and the views hold a reference. The page may ask for another program of the
tiles, or change a knob. Such requests arrive as custom messages, and `notebook.live` answers them as for a card.
"""

from __future__ import annotations

import contextlib
import gzip
import json
from collections.abc import Iterator, Mapping
from typing import Any

import ipywidgets
import traitlets

from blocknb.errors import LaunchError
from blocknb.notebook import live
from blocknb.notebook.card import Card, example, newest
from blocknb.notebook.document import MIME
from blocknb.notebook.observe import Observation, record_of
from blocknb.runtime.interface import KernelInterface
from blocknb.runtime.kernel import Kernel

#: The module of the page's code. Its version is that of the lab extension; the document's schema says whether the page can show it.
MODULE = {"_model_module": "blocknb", "_model_module_version": "*"}


class KernelDocument(ipywidgets.Widget):
    """A document, and the live card that answers for it (None: a document without a kernel). `users`: its views."""

    _model_name = traitlets.Unicode("KernelDocumentModel").tag(sync=True)
    _model_module = traitlets.Unicode(MODULE["_model_module"]).tag(sync=True)
    _model_module_version = traitlets.Unicode(MODULE["_model_module_version"]).tag(sync=True)
    packed = traitlets.Bytes(help="The document as JSON, compressed by gzip.").tag(sync=True)

    def __init__(self, content: Mapping[str, Any], answering: live.LiveCard | None = None):
        self.content, self.answering, self.users = dict(content), answering, set[Any]()
        super().__init__(packed=_packed(self.content))
        self.on_msg(lambda _, data, __: self._answer(data))

    @property
    def card(self) -> Card | None:
        """The card that the document shows now; None without a kernel."""
        return None if self.answering is None else self.answering.card

    def _answer(self, data: dict[str, Any]) -> None:
        if self.answering is None:
            self.send({"id": data.get("id"), "error": "this document has no kernel"})
        else:
            live._answer(_Sender(self), self.answering, data)

    def release(self, user: Any) -> None:
        """Closes the document if no view uses it after this one, so that a page with many launches does not keep all of them."""
        self.users.discard(user)
        if not self.users:
            self.close()

    def show(self, content: Mapping[str, Any]) -> None:
        """Replaces the document. All views that refer to it follow."""
        self.content = dict(content)
        self.packed = _packed(self.content)


class _Sender:
    """Sends answers for `live._answer`. All views show a new document, such as that of a changed knob, not only the one that asked."""

    def __init__(self, widget: KernelDocument):
        self.widget = widget

    def send(self, content: Mapping[str, Any]) -> None:
        if "document" in content:
            self.widget.show(content["document"])
        self.widget.send(content)


def _packed(content: Mapping[str, Any]) -> bytes:
    return gzip.compress(json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode(), mtime=0)


@contextlib.contextmanager
def record() -> Iterator[None]:
    """Records the launches inside, as a `%%blockkernel` cell does, so that widgets can show their times, accesses and knobs.

    with blocknb.widgets.record():
        add[grid](x, y, out, n, BLOCK=1024)
    """
    observation = Observation()
    observation.start()
    try:
        yield
    finally:
        observation.stop()


_SHARED = "_widget_document"  # in the kernel's own dictionary, so that no table keeps redefined kernels alive


def document_of(kernel: Any) -> KernelDocument:
    """The document of a kernel's newest card. All widgets of the kernel share it until the kernel is launched again.

    `kernel` is a kernel, an autotuner or heuristics around one, or a document as a notebook stores it. Raises LaunchError for a kernel
    that was neither launched nor compiled, and TypeError for another value.
    """
    if isinstance(kernel, Mapping):
        content = kernel.get(MIME, kernel)
        if not isinstance(content, Mapping) or "schema" not in content:
            raise TypeError(f"this mapping is no document of blocknb: a document is the value of {MIME!r} in an output")
        return KernelDocument({**content, "model": None})
    while isinstance(kernel, KernelInterface) and not isinstance(kernel, Kernel):
        kernel = getattr(kernel, "fn", None)
    if not isinstance(kernel, Kernel):
        raise TypeError(
            f"a widget shows a kernel or the document of a card, not a value of type {type(kernel).__name__}"
        )
    record = record_of(kernel)
    if record is None or record.latest is None:
        name = kernel.__name__
        raise LaunchError(f"{name} has not been launched, so a widget has nothing to show", hint=example(kernel))
    launched = record if record.launches else None  # of a compilation alone, each call of record_of makes a new record
    state = (record.latest.compiled, record.launches, launched)
    shared = vars(kernel).get(_SHARED)
    if shared is None or shared[0] != state or shared[1].comm is None:
        answering, bundle = live.registered(newest(record))
        shared = vars(kernel)[_SHARED] = state, KernelDocument(bundle[MIME], answering)
    return shared[1]
