"""Views of a kernel as widgets, whose traits say what is shown and selected.

`KernelView` holds the traits and keeps them consistent with the document. Each view is a subclass with the key of the view in the page
(`labextension/src/core/views/`). The page sets the traits when the user selects something, and moves the view when a trait changes. So
`observe`, `link`, `jslink` and `interact` of ipywidgets work with them.
"""

from __future__ import annotations

import difflib
from typing import Any, ClassVar

import ipywidgets
import traitlets

from blocknb.trace import Trace
from blocknb.widgets import outputs
from blocknb.widgets.documents import MODULE, KernelDocument, document_of


class _KernelTrait(traitlets.Any):
    """A trait that notifies also if it is set to the value that it has: the kernel may have been launched again."""

    def set(self, obj: Any, value: Any) -> None:
        old, obj._trait_values[self.name] = obj._trait_values.get(self.name), value
        obj._notify_trait(self.name, old, value)


class KernelView(ipywidgets.DOMWidget):
    """A view of a kernel as a widget.

    Traits: `kernel` is a kernel that was launched or compiled, or the document of a card. The next traits say what the view shows and what
    is selected; None is the default of the view. They are `target` ("sm_90a", "cpu"), `stage` and `compared_with` (names of passes, see
    `stages`), and `op` (an id). The others are `line` (of the source, as numbered in its cell), `program` and `iteration`. `stage_index` is
    the number of the stage and follows `stage`, so that a slider can be linked with it. `constants` holds the values of the kernel's
    constants, and changes when the user changes a knob; it cannot be set.

    A name that the kernel does not have raises TraitError. Setting `kernel` again shows its newest launch.
    """

    key: ClassVar[str] = "card"

    _model_name = traitlets.Unicode("KernelViewModel").tag(sync=True)
    _model_module = traitlets.Unicode(MODULE["_model_module"]).tag(sync=True)
    _model_module_version = traitlets.Unicode(MODULE["_model_module_version"]).tag(sync=True)
    _view_name = traitlets.Unicode("KernelViewWidget").tag(sync=True)
    _view_module = traitlets.Unicode(MODULE["_model_module"]).tag(sync=True)
    _view_module_version = traitlets.Unicode(MODULE["_model_module_version"]).tag(sync=True)

    view = traitlets.Unicode(read_only=True).tag(sync=True)
    document = traitlets.Instance(KernelDocument, allow_none=True).tag(sync=True, **ipywidgets.widget_serialization)
    kernel = _KernelTrait(None, allow_none=True)
    target = traitlets.Unicode(None, allow_none=True).tag(sync=True)
    stage = traitlets.Unicode(None, allow_none=True).tag(sync=True)
    stage_index = traitlets.Int(None, allow_none=True).tag(sync=True)
    compared_with = traitlets.Unicode(None, allow_none=True).tag(sync=True)
    op = traitlets.Int(None, allow_none=True).tag(sync=True)
    line = traitlets.Int(None, allow_none=True).tag(sync=True)
    program = traitlets.Int(None, allow_none=True).tag(sync=True)
    iteration = traitlets.Int(None, allow_none=True).tag(sync=True)
    constants = traitlets.Dict(read_only=True)

    def __init__(self, kernel: Any = None, **traits: Any):
        if kernel is not None:
            traits["document"] = document_of(kernel)
        self.set_trait("view", self.key)
        super().__init__(kernel=kernel, **traits)

    def __repr__(self) -> str:
        name = None if self.document is None else self.document.content.get("kernel")
        state = [f"{trait}={value!r}" for trait, value in self.state.items() if trait != "stage_index"]
        return f"{type(self).__name__}({', '.join([str(name), *state])})"

    @property
    def state(self) -> dict[str, Any]:
        """The traits that say what is shown, without those that are None."""
        found = {name: getattr(self, name) for name in outputs.STATE}
        return {name: value for name, value in found.items() if value is not None}

    @property
    def trace(self) -> Trace | None:
        """The Trace of what is shown, also after a changed knob; None without a kernel."""
        card = None if self.document is None else self.document.card
        traces = [] if card is None else [view.trace for view in card.views if view.trace is not None]
        chosen = [trace for trace in traces if str(trace.target) == self.target]
        return next(iter(chosen or [trace for trace in traces if trace.target.is_gpu] or traces), None)

    @property
    def targets(self) -> list[str]:
        """The values that `target` can have."""
        views = [] if self.document is None else self.document.content["views"]
        return [view["target"] for view in views if "target" in view]

    @property
    def stages(self) -> list[str]:
        """The names of the passes of the selected target in their order: the values that `stage` and `compared_with` can have."""
        views = [] if self.document is None else [v for v in self.document.content["views"] if v.get("stages")]
        chosen = [view for view in views if view.get("target") == self.target]
        gpu = [view for view in views if view["target"].startswith("sm_")]  # the page prefers a GPU, too
        shown = (chosen or gpu or views)[:1]
        return [stage["name"] for view in shown for stage in view["stages"]]

    @traitlets.validate("stage", "compared_with")
    def _check_stage(self, proposal: Any) -> str | None:
        return _known(proposal.value, self.stages, "pass") if self.document is not None else proposal.value

    @traitlets.validate("target")
    def _check_target(self, proposal: Any) -> str | None:
        if self.document is None:
            return proposal.value
        cpu = next((target for target in self.targets if target.partition(":")[0] == proposal.value), None)
        return cpu or _known(proposal.value, self.targets, "target")  # "cpu" stands for the CPU of this machine

    @traitlets.observe("kernel")
    def _open(self, change: Any) -> None:
        """Shows another kernel. Fields that the new one does not have are set to None."""
        before, found = self.document, None if self.kernel is None else document_of(self.kernel)
        with self.hold_sync():
            self.document = found
            if self.target not in self.targets:
                self.target = None
            self._forget_unknown_stages()
        if before is not None and before is not found:
            before.release(self)

    @traitlets.observe("target")
    def _forget_unknown_stages(self, change: Any = None) -> None:
        for name in ("stage", "compared_with"):
            if getattr(self, name) not in self.stages:
                setattr(self, name, None)

    @traitlets.observe("document")
    def _follow(self, change: Any) -> None:
        if isinstance(change.old, KernelDocument):
            change.old.unobserve(self._read, "packed")
        if self.document is not None:
            self.document.observe(self._read, "packed")
            self.document.users.add(self)
        self._read()

    def close(self) -> None:
        """Removes the view from all pages."""
        if self.document is not None and self.comm is not None:
            self.document.release(self)
        super().close()

    def _read(self, change: Any = None) -> None:
        """Reads the constants after a launch or a changed knob."""
        card = None if self.document is None else self.document.card
        self.set_trait("constants", {} if card is None else dict(card.main.compiled.trace.constants))
        self._number_stage()

    @traitlets.observe("stage", "target")
    def _number_stage(self, change: Any = None) -> None:
        if self.stage in self.stages:
            self.stage_index = self.stages.index(self.stage)
        elif change is not None and change.name == "stage":
            self.stage_index = None

    @traitlets.observe("stage_index")
    def _name_stage(self, change: Any) -> None:
        if self.stage_index is not None and self.stages:
            self.stage = self.stages[max(0, min(self.stage_index, len(self.stages) - 1))]

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        return outputs.bundle(self)


def _known(value: str | None, names: list[str], what: str) -> str | None:
    if value is None or value in names:
        return value
    close = difflib.get_close_matches(value, names, 1)
    hint = f"; did you mean {close[0]!r}?" if close else f": there are {', '.join(names)}"
    raise traitlets.TraitError(f"the kernel has no {what} {value!r}{hint}")


#: All views by the name of their class.
VIEWS: dict[str, type[KernelView]] = {}


def view(name: str, key: str, about: str) -> type[KernelView]:
    """Defines a view: `Code = view("Code", "code", "...")`. `key` is that of the view in the page, `about` the docstring."""
    found = type(name, (KernelView,), {"key": key, "__doc__": about, "__module__": "blocknb.widgets"})
    VIEWS[name] = found
    return found
