"""The operators that a generated kernel fuses, as a graph that can run: stored as a comment in the file of the graph.

The nodes are those of Inductor's FX graph (Reed et al. 2022), after decompositions. A kernel reads and writes buffers of Inductor; each
belongs to a node of that graph, if an operator returns its value. `GraphFragment.run` computes what the kernel writes from what it reads,
operator by operator, in the types of the model or in float64.
"""

from __future__ import annotations

import json
import operator
import weakref
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

#: Begins the comment of a generated graph that has the operators of a kernel, as JSON.
COMMENT = "# operators of a kernel: "
#: Parts of names of operators whose results are random.
_RANDOM = ("rand", "seed", "dropout", "bernoulli", "normal", "multinomial", "philox", "exponential")


class NotComputed(Exception):
    """The operators of a kernel cannot run one by one; the message says why."""


@dataclass(frozen=True)
class _FusedNode:
    """An operator of the graph: its target, such as "aten.add.Tensor", and its arguments as JSON, with {"$node": name} for values."""

    name: str
    target: str
    args: Any
    kwargs: Any
    line: str


@dataclass(frozen=True)
class GraphFragment:
    """`nodes` in the order of the graph. `reads` and `writes` map parameters of the kernel to names of nodes, "" if no operator returns
    the value. `shapes` are the shapes, strides and dtypes of these nodes, as texts that may have symbols of dynamic shapes. `sizes` are the
    parameters that have the values of such texts."""

    nodes: tuple[_FusedNode, ...]
    reads: Mapping[str, str]
    writes: Mapping[str, str]
    shapes: Mapping[str, tuple[tuple[str, ...], tuple[str, ...], str]]
    sizes: Mapping[str, str]

    def run(self, values: Mapping[str, Any], output: str, wide: bool) -> Any:
        """The value of the parameter `output`, from the arguments of a launch, in float64 if `wide`. Raises NotComputed."""
        wanted = self.writes.get(output)
        if not wanted:
            raise NotComputed("no operator returns this value")
        symbols = self._symbols(values)
        known: dict[str, Any] = {}
        for name, node in self.reads.items():
            if node and name in values:
                value = self._shaped(values[name], node, symbols)
                known[node] = value.double() if wide and value.is_floating_point() else value.clone()
        evaluation = _Evaluation({node.name: node for node in self.nodes}, known, symbols, wide)
        return evaluation.value(wanted)

    def line(self, node: str) -> str:
        """The user's line of a node, as "file:line: text"; "" if it is unknown."""
        return next((found.line for found in self.nodes if found.name == node), "")

    def _symbols(self, values: Mapping[str, Any]) -> dict[str, int]:
        """The values of symbols and of expressions of symbols, from the arguments and their shapes."""
        found: dict[str, int] = {}
        for name, node in self.reads.items():
            shape = self.shapes[node][0] if node else ()
            if hasattr(values.get(name), "shape") and len(shape) == values[name].dim():
                found |= dict(zip(shape, values[name].shape, strict=True))
        return found | {text: values[name] for name, text in self.sizes.items() if name in values}

    def _shaped(self, value: Any, node: str, symbols: Mapping[str, int]) -> Any:
        """An argument with the shape of its node. A kernel may get the same memory in another shape, or a tensor of one element as a
        number."""
        shape, strides = ([_size(text, symbols) for text in texts] for texts in self.shapes[node][:2])
        if not hasattr(value, "untyped_storage"):
            return torch.full(shape, value, dtype=getattr(torch, self.shapes[node][2]))
        if list(value.shape) == shape:
            return value
        return value.as_strided(shape, strides, value.storage_offset())


def _size(text: str, symbols: Mapping[str, int]) -> int:
    """The value of a size that may have symbols."""
    if text.lstrip("-").isdigit() or text in symbols:
        return int(symbols.get(text, text))
    import sympy
    from torch.utils._sympy.functions import FloorDiv, Mod, ModularIndexing

    names = {
        "FloorDiv": FloorDiv,
        "Mod": Mod,
        "ModularIndexing": ModularIndexing,
        **{name: value for name, value in symbols.items() if name.isidentifier()},
    }
    try:
        return int(sympy.sympify(text, locals=names))
    except (TypeError, ValueError, sympy.SympifyError):
        raise NotComputed(f"the size {text} depends on data, or on a shape that no argument has") from None


@dataclass(eq=False)
class _Evaluation:
    """Runs nodes on demand. `known` has values by the name of their node."""

    nodes: Mapping[str, _FusedNode]
    known: dict[str, Any]
    symbols: Mapping[str, int]
    wide: bool

    def value(self, name: str) -> Any:
        if name not in self.known:
            if name not in self.nodes:
                raise NotComputed(f"the kernel does not read {name}, on which the value depends")
            for needed in _order(self.nodes, name, self.known):
                self.known[needed] = self._result(self.nodes[needed])
        return self.known[name]

    def _result(self, node: _FusedNode) -> Any:
        if any(part in node.target for part in _RANDOM):
            raise NotComputed(f"{node.target} draws random numbers")
        args, kwargs = self._argument(node.args), self._argument(node.kwargs)
        try:
            return _function(node.target)(*args, **kwargs)
        except (RuntimeError, TypeError, NotImplementedError, IndexError) as error:
            raise NotComputed(f"{node.target} failed: {str(error).splitlines()[0]}") from error

    def _argument(self, found: Any) -> Any:
        match found:
            case {"$node": name}:
                return self.value(name)
            case {"$size": text}:
                return _size(text, self.symbols)
            case {"$dtype": name}:
                dtype = getattr(torch, name)
                return torch.float64 if self.wide and dtype.is_floating_point else dtype
            case {"$torch": name}:
                return getattr(torch, name)
            case {"$device": name}:
                return torch.device(name)
            case {"$unknown": text}:
                raise NotComputed(f"an argument is not stored: {text}")
            case dict():
                return {key: self._argument(value) for key, value in found.items()}
            case list():
                return [self._argument(value) for value in found]
        return found


def _order(nodes: Mapping[str, _FusedNode], wanted: str, known: Mapping[str, Any]) -> list[str]:
    """The nodes that a value needs and that are not known, in the order of the graph. Nodes are stored in that order."""
    needed, todo = set(), [wanted]
    while todo:
        name = todo.pop()
        if name in needed or name in known or name not in nodes:
            continue
        needed.add(name)
        todo += _references([nodes[name].args, nodes[name].kwargs])
    return [name for name in nodes if name in needed]


def _references(found: Any) -> Iterator[str]:
    if isinstance(found, dict):
        if set(found) == {"$node"}:
            yield found["$node"]
        else:
            for value in found.values():
                yield from _references(value)
    elif isinstance(found, list):
        for value in found:
            yield from _references(value)


def _function(target: str) -> Any:
    if target == "getitem":
        return operator.getitem
    found: Any = torch.ops
    for name in target.split("."):
        found = getattr(found, name, None)
    if found is None:
        raise NotComputed(f"{target} is no operator of torch")
    return found


# ---- stored in the file of a graph -----------------------------------------------------------------------------------------


def of_kernel(schedule: Any, kernel: Any) -> dict[str, Any]:
    """The fragment of a kernel that Inductor is generating, as JSON."""
    from torch._inductor.utils import aggregate_origins

    fused = [node for node in aggregate_origins(schedule) if node.op == "call_function"]
    made = {name for node in schedule if hasattr(node, "get_buffer_names") for name in node.get_buffer_names()}
    reads, writes = _parameters(kernel, made)
    shapes = {node.name: _shape(node) for node in (*reads.values(), *writes.values()) if node is not None}
    bounds = {node for node in reads.values() if node is not None}
    nodes = _needed(fused, [node for node in writes.values() if node is not None], bounds)
    return {
        "nodes": [_stored(node) for node in nodes],
        "reads": {name: "" if node is None else node.name for name, node in reads.items()},
        "writes": {name: "" if node is None else node.name for name, node in writes.items()},
        "shapes": shapes,
        "sizes": {str(name): str(size) for size, name in kernel.args.sizevars.items()},
    }


def _parameters(kernel: Any, made: set[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The graph nodes whose values the parameters of a kernel read and write; None for a value that no operator returns. `made` are the
    buffers that the kernel itself makes: memory that holds one of them has no value before the launch."""
    reads, writes = {}, {}
    for buffer, name in kernel.args.input_buffers.items():
        reads[str(name)] = _node_of(buffer)
    for buffer, name in kernel.args.output_buffers.items():
        if isinstance(name, str):  # else the kernel keeps it in registers
            writes[name] = _written_to(buffer)
    for shared in kernel.args.inplace_buffers.values():
        if hasattr(shared, "other_names"):
            if shared.other_names[0] not in made:
                reads[shared.inner_name] = _node_of(shared.other_names[0])
            writes[shared.inner_name] = _written_to(shared.other_names[-1])
    return reads, writes


def _node_of(buffer: str) -> Any:
    """The node whose value a buffer of Inductor has."""
    from torch._inductor.virtualized import V

    if buffer in V.graph.graph_inputs or buffer in V.graph.constants:
        return next((node for node in V.graph.graph.nodes if node.name == buffer or node.target == buffer), None)
    found = V.graph.name_to_buffer.get(buffer)
    return None if found is None else found.get_origin_node()


def _written_to(buffer: str) -> Any:
    """The node whose value a kernel writes to a buffer: for an argument of the graph, what `copy_` gives it at the end."""
    from torch._inductor.virtualized import V

    if buffer not in V.graph.graph_inputs:
        return _node_of(buffer)
    copies = V.graph.graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)
    return next((node.args[1] for node in copies if node.args[0].name == buffer), None)


def _shape(node: Any) -> tuple[list[str], list[str], str]:
    value = node.meta.get("val")
    if not hasattr(value, "stride"):
        return [], [], ""
    return list(map(str, value.shape)), list(map(str, value.stride())), str(value.dtype).removeprefix("torch.")


def _needed(fused: Iterable[Any], wanted: list[Any], bounds: set[Any]) -> list[Any]:
    """The nodes between what a kernel writes and what it reads: those that it fuses, and views of other nodes."""
    own, found, todo = set(fused), set(), list(wanted)
    while todo:
        node = todo.pop()
        if node in found or node in bounds or node.op != "call_function":
            continue
        if node in own or getattr(node.target, "is_view", False) or node.target is operator.getitem or node in wanted:
            found.add(node)
            todo += node.all_input_nodes
    place = {node: i for i, node in enumerate(wanted[0].graph.nodes)} if wanted else {}
    return sorted(found, key=place.__getitem__)


def _stored(node: Any) -> dict[str, Any]:
    from blocknb.torch.inductor.origins import line_of

    target = "getitem" if node.target is operator.getitem else str(node.target)
    line = line_of(node)
    return {
        "name": node.name,
        "target": target,
        "args": [_json(value) for value in node.args],
        "kwargs": {name: _json(value) for name, value in node.kwargs.items()},
        "line": "{}:{}: {}".format(*line) if line else "",
    }


def _json(value: Any) -> Any:
    """An argument of a node as JSON."""
    if isinstance(value, torch.fx.Node):
        found = value.meta.get("val")
        return {"$size": str(found)} if isinstance(found, torch.SymInt) else {"$node": value.name}
    if isinstance(value, torch.SymInt):
        return {"$size": str(value)}
    if isinstance(value, torch.dtype):
        return {"$dtype": str(value).removeprefix("torch.")}
    if isinstance(value, torch.device):
        return {"$device": str(value)}
    if isinstance(value, torch.memory_format | torch.layout):
        return {"$torch": str(value).removeprefix("torch.")}
    if isinstance(value, list | tuple):
        return [_json(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return {"$unknown": str(value)}


#: The fragments of the kernels that Inductor has loaded, by their autotuner.
_of: weakref.WeakKeyDictionary[Any, GraphFragment] = weakref.WeakKeyDictionary()


def fragment_of(autotuner: Any) -> GraphFragment | None:
    """The operators of a kernel; None if its graph did not record them."""
    return _of.get(autotuner)


def remember(text: str, module: Any) -> None:
    """Reads the comments of the generated file of a graph."""
    for line in text.splitlines():
        if line.startswith(COMMENT):
            told = json.loads(line.removeprefix(COMMENT))
            if (autotuner := getattr(module, told["kernel"], None)) is not None:
                nodes = tuple(_FusedNode(**node) for node in told["nodes"])
                shapes = {
                    name: (tuple(shape), tuple(strides), dtype)
                    for name, (shape, strides, dtype) in told["shapes"].items()
                }
                _of[autotuner] = GraphFragment(nodes, told["reads"], told["writes"], shapes, told["sizes"])
