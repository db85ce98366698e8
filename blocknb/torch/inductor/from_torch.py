"""`kernel.from_torch(function, *example)`: the kernels that Inductor makes of an eager function, as a cell to start from.

The function is compiled for the device and the shapes of its examples. The cell has the generated kernels, readable, and a function that
allocates and launches as the generated graph does. Names come from the function's parameters and the graph's operators. The text is run
and compared with the function before anybody sees it.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import linecache
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from blocknb.errors import KernelError, LaunchError
from blocknb.runtime import notebook_methods
from blocknb.torch.inductor import compared, fragments
from blocknb.torch.inductor.backend import backend
from blocknb.torch.inductor.cell_text import definitions, header, short_name
from blocknb.torch.inductor.launched import GeneratedKernel, recorded
from blocknb.torch.inductor.readable import comment, free_name, text_of

_numbers = itertools.count(1)
#: Inductor's allocating functions, and the operators that it calls with `out=`.
_EMPTY = re.compile(r"empty_strided_\w+$")
_TORCH = frozenset(("mm", "bmm", "addmm", "baddbmm"))
#: Inductor's names of sets of operators, and their places.
_OPERATORS = {"aten": "torch.ops.aten", "inductor_ops": "torch.ops.inductor"}
#: Grids that a launch can compute from the sizes and the blocks, by Inductor's name.
_GRIDS = {"Grid1D": "x", "Grid2D": "xy", "Grid3D": "xyz"}


def from_torch(function: Callable[..., Any], *example: Any) -> str | None:
    """Starts a cell from an eager function: its fused kernels, and a function that launches them on arguments like the examples.

    In a notebook the cell appears below the current one, and None returns; elsewhere the text returns. Raises LaunchError if the function
    needs no kernel, reads tensors that are not its arguments, or draws random numbers, and what torch.compile raises.
    """
    return notebook_methods.call("open_cell", text_from(function, *example))


def text_from(function: Callable[..., Any], *example: Any) -> str:
    """The text of the cell of `from_torch`."""
    graph_names, kernels, results = _compiled(function, example)
    given = dict(zip(inspect.signature(function).parameters, example, strict=False))
    arguments = [name for name, value in given.items() if isinstance(value, torch.Tensor)]
    fixed = {name: value for name, value in given.items() if name not in arguments}
    text = _Cell(function, arguments, fixed, graph_names, kernels).text()
    _check(function, example, [given[name] for name in arguments], results, text)
    return text


def _compiled(
    function: Callable[..., Any], example: Sequence[Any]
) -> tuple[list[str], list[GeneratedKernel], list[Any]]:
    """The names of the arguments of the graph, its launches, and its results."""
    found: list[list[str]] = []

    def capture(graph: Any, inputs: Any) -> Any:
        found.append([_argument(node) for node in graph.graph.nodes if node.op == "placeholder"])
        return backend(graph, inputs)

    compiled = torch.compile(lambda *args: function(*args), backend=capture, fullgraph=True, dynamic=False)
    with torch.no_grad():
        compiled(*map(_copy, example))
        with recorded() as record:
            results = tree_leaves(compiled(*map(_copy, example)))
    kernels = list(record.kernels)
    if not kernels:
        raise LaunchError(f"{_name(function)} needs no generated kernel: all its operators are torch's own")
    parameters = list(inspect.signature(function).parameters)
    return [_parameter(name, parameters, function) for name in found[0]], kernels, results


def _argument(node: Any) -> str:
    source = getattr(node.meta.get("grapharg"), "source", None)
    name = getattr(source, "name", node.name)
    return str(name() if callable(name) else name)


def _parameter(source: str, parameters: Sequence[str], function: Callable[..., Any]) -> str:
    """The parameter of the function that an argument of the graph is."""
    if (found := re.fullmatch(r"L\['args'\]\[(\d+)\]", source)) and int(found[1]) < len(parameters):
        return parameters[int(found[1])]
    raise LaunchError(
        f"{_name(function)} reads a tensor that is not one of its arguments: {source}",
        hint="write it as a function of tensors, and pass each of them",
    )


def _name(function: Callable[..., Any]) -> str:
    name = getattr(function, "__name__", "function")
    return name if name.isidentifier() else "function"


def _copy(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


class _Cell:
    """Writes the cell. `names` are new names of the variables of the generated graph, `kernels` the launches in its order."""

    def __init__(
        self,
        function: Callable[..., Any],
        arguments: Sequence[str],
        fixed: Mapping[str, Any],
        received: Sequence[str],
        launches: Sequence[GeneratedKernel],
    ):
        self.function, self.arguments, self.launches = function, arguments, launches
        self.fixed, self.received = fixed, received
        self.wrapper = f"fused_{_name(function)}"
        self.names: dict[str, str] = {}
        self.taken = {
            *arguments,
            self.wrapper,
            "torch",
            "tl",
            "blocknb",
            "triton_helpers",
            "libdevice",
            "tl_math",
            "grid",
        }
        self.kernels: dict[int, tuple[str, str]] = {}  # (name, definitions) by the id of the autotuner

    def text(self) -> str:
        """The whole text."""
        call = self._call()
        runs = [node for node in ast.walk(call) if isinstance(node, ast.Call) and _is_run(node)]
        if len(runs) != len(self.launches):
            raise LaunchError(f"{_name(self.function)} does not launch its kernels one after another")
        unpacked = next(s for s in ast.walk(call) if isinstance(s, ast.Assign) and ast.unparse(s.value) == "args")
        target = unpacked.targets[0]
        received = [n.id for n in (target.elts if isinstance(target, ast.Tuple) else [target])]  # type: ignore[attr-defined]
        if len(received) != len(self.received):
            raise LaunchError(f"the graph of {_name(self.function)} has other arguments than the function")
        self.names |= dict(zip(received, self.received, strict=True))
        self._name_operators(call)
        for run, launch in zip(runs, self.launches, strict=True):
            self._name_buffers(run, launch)
            self._define(run, launch)
        self._name_memory(call)
        body = self._statements(call.body, iter(self.launches))
        wrapper = ast.parse(f"def {self.wrapper}({', '.join(self.arguments)}): pass").body[0]
        wrapper.body = body  # type: ignore[attr-defined]
        code = "\n\n\n".join([*dict.fromkeys(made for _, made in self.kernels.values()), text_of(wrapper)])
        more = "import torch"
        if "extern_kernels" in code:
            more += "\nfrom torch._inductor.select_algorithm import extern_kernels"
        lines = ["%%blockkernel", *self._about(), *header(code, more), "", "", code]
        return "\n".join(lines) + "\n"

    def _about(self) -> list[str]:
        device = self.launches[0].autotuner.device_props.type
        place = self.function.__code__ if hasattr(self.function, "__code__") else None
        where = f" ({place.co_filename}:{place.co_firstlineno})" if place is not None else ""
        return [
            f"# The kernels of {_name(self.function)}{where} on a {'CPU' if device == 'cpu' else 'GPU'}, for the shapes of the examples.",
            f"# Launch them by {self.wrapper}({', '.join(self.arguments)}).",
            *(f"# {name} is {value!r}." for name, value in self.fixed.items()),
        ]

    def _call(self) -> ast.FunctionDef:
        with open(self.launches[0].origin.graph, encoding="utf-8") as file:
            tree = ast.parse(file.read())
        return next(n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == "call")

    def _name_buffers(self, run: ast.Call, launch: GeneratedKernel) -> None:
        """Names what a launch writes by the operators of the graph."""
        fragment = fragments.fragment_of(launch.autotuner)
        for parameter, value in zip(_runtime(launch), run.args, strict=False):
            node = fragment.writes.get(parameter) if fragment is not None else None
            if isinstance(value, ast.Name) and value.id not in self.names and node:
                self.names[value.id] = free_name(re.sub(r"_\d+$", "", node), self.taken)

    def _name_operators(self, call: ast.FunctionDef) -> None:
        """Names the buffers that torch's own operators write by these operators."""
        for node in ast.walk(call):
            match node:
                case ast.Call(ast.Attribute(_, name), _, keywords):
                    for keyword in keywords:
                        if keyword.arg == "out" and isinstance(keyword.value, ast.Name):
                            self.names.setdefault(keyword.value.id, free_name(name, self.taken))

    def _name_memory(self, call: ast.FunctionDef) -> None:
        """Gives memory that only one buffer uses the name of this buffer."""
        reads = Counter(n.id for n in ast.walk(call) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load))
        for node in ast.walk(call):
            match node:
                case ast.Assign([ast.Name(buffer)], ast.Name(memory)) if reads[memory] == 1 and buffer in self.names:
                    self.names.setdefault(memory, self.names[buffer])

    def _define(self, run: ast.Call, launch: GeneratedKernel) -> None:
        if id(launch.autotuner) in self.kernels:
            return
        name = free_name(f"{short_name(launch.name)}_kernel", self.taken)
        pointers: dict[str, str] = {}
        taken = set(_runtime(launch))
        for parameter, value in zip(_runtime(launch), run.args, strict=False):
            if isinstance(value, ast.Name) and "ptr" in parameter and (known := self.names.get(value.id)):
                pointers[parameter] = free_name(f"{known}_ptr", taken)
        fragment = fragments.fragment_of(launch.autotuner)
        made = definitions(launch.autotuner, launch.config, name, pointers, lambda node: _note_stores(node, fragment))
        self.kernels[id(launch.autotuner)] = name, made

    def _statements(self, block: Sequence[ast.stmt], launches: Any) -> list[ast.stmt]:
        """The statements of the generated graph as those of the wrapper."""
        made: list[ast.stmt] = []
        for statement in block:
            match statement:
                case ast.With():
                    made += self._statements(statement.body, launches)
                case ast.Expr(ast.Call() as run) if _is_run(run):
                    made += self._launch(run, next(launches))
                case ast.Delete() | ast.Pass():
                    pass
                case ast.Expr(ast.Call(function)) if re.search(r"assert_|clear$|set_device", ast.unparse(function)):
                    pass
                case ast.Assign([_], value) if re.search(r"^args$|get_raw_stream", ast.unparse(value)):
                    pass
                case ast.Assign([ast.Name(buffer)], ast.Name(memory)) if name := self.names.get(buffer):
                    if self.names.get(memory) != name:
                        made.append(self._renamed(statement))
                case ast.Return(ast.Tuple([one])):
                    made.append(ast.Return(self._renamed(one)))
                case _:
                    made.append(self._renamed(statement))
        return made

    def _launch(self, run: ast.Call, launch: GeneratedKernel) -> list[ast.stmt]:
        name, _ = self.kernels[id(launch.autotuner)]
        lines = [comment(f"{file.rsplit('/', 1)[-1]}:{line}: {text}") for file, line, text in launch.lines]
        arguments = ", ".join(ast.unparse(self._renamed(value)) for value in run.args)
        return [*lines, ast.parse(f"{name}[{_grid(launch)}]({arguments})").body[0]]

    def _renamed(self, tree: Any) -> Any:
        return _Wrapping(self.names, self.taken, self.arguments[0]).visit(tree)


class _Wrapping(ast.NodeTransformer):
    """Renames the variables of a generated graph, and calls torch's public functions instead of Inductor's."""

    def __init__(self, names: dict[str, str], taken: set[str], first: str):
        self.names, self.taken, self.first = names, taken, first

    def visit_Name(self, node: ast.Name) -> Any:
        if re.fullmatch(r"buf\d+", node.id) and node.id not in self.names:
            self.names[node.id] = free_name(node.id, self.taken)
        if node.id in _OPERATORS:
            return ast.parse(_OPERATORS[node.id], mode="eval").body
        return ast.Name(self.names.get(node.id, node.id), node.ctx)

    def visit_Call(self, node: ast.Call) -> Any:
        self.generic_visit(node)
        match node.func:
            case ast.Name(name) if _EMPTY.match(name):
                device = ast.Attribute(ast.Name(self.first, ast.Load()), "device", ast.Load())
                options = [ast.keyword("dtype", node.args[2]), ast.keyword("device", device)]
                return ast.Call(ast.parse("torch.empty_strided", mode="eval").body, node.args[:2], options)
            case ast.Name("reinterpret_tensor"):
                node.func = ast.parse("torch.as_strided", mode="eval").body
            case ast.Attribute(ast.Name("extern_kernels"), name) if name in _TORCH:
                node.func = ast.Attribute(ast.Name("torch", ast.Load()), name, ast.Load())
        return node


def _is_run(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "run"


def _runtime(launch: GeneratedKernel) -> list[str]:
    """The parameters that a launch passes by position."""
    return [p.name for p in launch.autotuner.fn.params if not p.is_constexpr]


def _grid(launch: GeneratedKernel) -> str:
    """The grid of a launch: a function of sizes and blocks where it is simple, else the recorded one."""
    axes = _GRIDS.get(launch.autotuner.inductor_meta.get("grid_type", ""), "")
    blocks = {p.name for p in launch.autotuner.fn.params if p.is_constexpr}
    if axes and {f"{axis.upper()}BLOCK" for axis in axes} <= blocks:
        sizes = (f'blocknb.cdiv(meta["{axis}numel"], meta["{axis.upper()}BLOCK"])' for axis in axes)
        return f"lambda meta: ({', '.join(sizes)},)"
    assert launch.launch is not None
    return repr(launch.launch.grid)


def _note_stores(function: ast.FunctionDef, fragment: Any) -> None:
    """Adds a comment before each store: the operator of the graph, and the user's line."""

    def noted(block: list[ast.stmt]) -> list[ast.stmt]:
        made = []
        for statement in block:
            for name in ("body", "orelse"):
                if getattr(statement, name, None):
                    setattr(statement, name, noted(getattr(statement, name)))
            match statement:
                case ast.Expr(ast.Call(ast.Attribute(_, "store" | "atomic_add"), [place, *_])):
                    pointers = [n.id for n in ast.walk(place) if isinstance(n, ast.Name) and n.id in fragment.writes]
                    if pointers and (node := fragment.writes[pointers[0]]):
                        made.append(comment(f"{node}, of {fragment.line(node)}" if fragment.line(node) else node))
            made.append(statement)
        return made

    if fragment is not None:
        function.body = noted(function.body)


def _check(
    function: Callable[..., Any], example: Sequence[Any], arguments: Sequence[Any], compiled: Sequence[Any], text: str
) -> None:
    """Runs the text, and compares the results with those of the function. They must agree within the tolerance of their type, or be as near
    to float64 as eager or the compiled graph is. Raises LaunchError."""
    file = f"<from_torch {next(_numbers)}>"
    body = text.replace("%%blockkernel", "", 1)
    linecache.cache[file] = len(body), None, body.splitlines(keepends=True), file
    space: dict[str, Any] = {"__name__": file}
    hint = "a function that draws random numbers cannot be compared; leave those operators out"
    with torch.no_grad():
        expected = tree_leaves(function(*map(_copy, example)))
        wide = _in_float64(function, example, len(expected))
        try:
            exec(compile(body, file, "exec"), space)
            found = tree_leaves(space[f"fused_{_name(function)}"](*map(_copy, arguments)))
        except (KernelError, NameError, RuntimeError, TypeError) as error:
            raise LaunchError(f"the kernels of {_name(function)} do not run on the examples: {error}") from error
    if len(found) != len(expected):
        raise LaunchError(f"{_name(function)} returns {len(expected)} values, and its graph {len(found)}")
    for i, (ours, theirs, graph, reference) in enumerate(zip(found, expected, compiled, wide, strict=True)):
        same = (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
        known = [theirs] if reference is None else [theirs, graph]
        if not same or all(compared.wrong_elements(old, ours, reference).any() for old in known):
            raise LaunchError(
                f"the kernels of {_name(function)} do not give eager's result {i} on the examples", hint=hint
            )


def _in_float64(function: Callable[..., Any], example: Sequence[Any], count: int) -> list[Any]:
    """The results in float64; None for each if the function takes no arguments in float64."""
    wide = [_copy(x).double() if isinstance(x, torch.Tensor) and x.is_floating_point() else _copy(x) for x in example]
    try:
        found = tree_leaves(function(*wide))
    except (RuntimeError, TypeError):
        return [None] * count
    return [value if isinstance(value, torch.Tensor) and value.dtype == torch.float64 else None for value in found]
