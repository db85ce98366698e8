"""Makes a generated kernel readable: drops dead assignments, puts values that are used once in their place, and names the others.

The transformation keeps every operation and its order of rounding. It only moves pure expressions to their single use. A value that
remains is named by its operation, as ATen names it (`add`, `rsqrt`, `sum_1`), and a loaded value by its pointer.
"""

from __future__ import annotations

import ast
import builtins
import copy
import keyword
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

WIDTH = 100  # characters of a line, above which no value is put in its place
_COMMENT = "#blocknb "
_TEMPORARY = re.compile(r"_?tmp\d+(_\d+)?$")
#: Functions of tl that read or write memory, or whose number of calls matters.
_IMPURE = re.compile(
    r"load|store|atomic|assert|barrier|inline_asm|print|make_tensor_descriptor|make_block_ptr|advance|range"
)
#: Functions of triton_helpers without effects.
_PURE_HELPERS = frozenset(
    [
        "max2",
        "min2",
        "maximum",
        "minimum",
        "any",
        "prod",
        "sum",
        "promote_to_tensor",
        "div_floor_integer",
        "remainder_integer",
        "is_floating",
    ]
)
_OPERATORS = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div", ast.FloorDiv: "floordiv", ast.Mod: "mod", ast.Pow: "pow",
    ast.BitAnd: "bitwise_and", ast.BitOr: "bitwise_or", ast.BitXor: "bitwise_xor", ast.LShift: "lshift", ast.RShift: "rshift",
    ast.Gt: "gt", ast.Lt: "lt", ast.GtE: "ge", ast.LtE: "le", ast.Eq: "eq", ast.NotEq: "ne",
    ast.USub: "neg", ast.Invert: "bitwise_not", ast.Not: "logical_not",
}  # fmt: skip


def comment(text: str) -> ast.stmt:
    """A statement that `text_of` writes as a comment."""
    return ast.Expr(ast.Constant(_COMMENT + " ".join(text.split())))


def text_of(tree: ast.AST) -> str:
    """The text of a tree, with its comments."""
    lines = []
    for line in ast.unparse(ast.fix_missing_locations(tree)).splitlines():
        body = line.lstrip()
        if body.startswith(("'" + _COMMENT, '"' + _COMMENT)):
            line = line[: len(line) - len(body)] + "# " + ast.literal_eval(body).removeprefix(_COMMENT)
        lines.append(line)
    return "\n".join(lines)


def readable(function: ast.FunctionDef, names: Mapping[str, str] | None = None) -> ast.FunctionDef:
    """A readable form of a generated kernel. `names` are new names of its parameters."""
    _drop_dead(function)
    _propagate(function)
    if not any("float64" in node.attr for node in ast.walk(function) if isinstance(node, ast.Attribute)):
        _inline_constants(function)
    stable = {name for name, count in _stores(function).items() if count <= 1}
    function.body = _inlined(function.body, _loads(function), stable, _stores(function))
    _drop_dead(function)
    return _renamed(function, dict(names or {}))


def _names(tree: ast.AST, context: type) -> Iterator[str]:
    return (node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, context))


def _loads(tree: ast.AST) -> Counter[str]:
    return Counter(_names(tree, ast.Load))


def _stores(function: ast.AST) -> Counter[str]:
    return Counter(_names(function, ast.Store))


def _assigned(statement: ast.stmt) -> str | None:
    """The name that a plain assignment sets."""
    match statement:
        case ast.Assign([ast.Name(name)], _) | ast.AnnAssign(ast.Name(name), _, ast.expr()):
            return name
    return None


def _pure(expression: ast.AST) -> bool:
    for node in ast.walk(expression):
        if isinstance(node, ast.Call):
            match node.func:
                case ast.Attribute(ast.Name("triton_helpers"), name):
                    if name not in _PURE_HELPERS:
                        return False
                case ast.Attribute(_, name):
                    if _IMPURE.search(name):
                        return False
                case ast.Name("float" | "int" | "bool"):
                    pass
                case _:
                    return False
    return True


def _harmless(expression: ast.AST) -> bool:
    """Whether an expression may be left out if its value is not used: pure, or a plain load."""
    calls = [node.func for node in ast.walk(expression) if isinstance(node, ast.Call)]
    loads = [f for f in calls if isinstance(f, ast.Attribute) and ast.unparse(f) == "tl.load"]
    return _pure(expression) or (len(loads) == 1 and isinstance(expression, ast.Call) and expression.func is loads[0])


def _blocks(tree: ast.AST) -> Iterator[list[ast.stmt]]:
    for node in ast.walk(tree):
        for name in ("body", "orelse"):
            block = getattr(node, name, None)
            if isinstance(block, list):
                yield block


def _drop_dead(function: ast.FunctionDef) -> None:
    """Drops assignments whose values nothing reads, until none is left."""
    while True:
        read, dropped = _loads(function), False
        for block in _blocks(function):
            for statement in list(block):
                name = _assigned(statement)
                value = getattr(statement, "value", None)
                if name and value is not None and not read[name] and _harmless(value) and len(block) > 1:
                    block.remove(statement)
                    dropped = True
        if not dropped:
            return


class _Substitution(ast.NodeTransformer):
    """Replaces reads of names by expressions, and names by names where `renamed` has them."""

    def __init__(self, values: Mapping[str, ast.expr], renamed: Mapping[str, str] | None = None):
        self.values, self.renamed = values, renamed or {}

    def visit_Name(self, node: ast.Name) -> Any:
        if isinstance(node.ctx, ast.Load) and node.id in self.values:
            return copy.deepcopy(self.values[node.id])
        node.id = self.renamed.get(node.id, node.id)
        return node

    def visit_arg(self, node: ast.arg) -> Any:
        node.arg = self.renamed.get(node.arg, node.arg)
        return self.generic_visit(node)


def _propagate(function: ast.FunctionDef) -> None:
    """Replaces a name that is only another name of a value: `x0 = xindex`."""
    stores = _stores(function)
    parameters = {argument.arg for argument in function.args.args}
    for block in list(_blocks(function)):
        for statement in block[:]:
            match statement:
                case ast.Assign([ast.Name(name)], ast.Name(other)):
                    once = stores[name] == 1 and stores[other] == (other not in parameters)
                    if once and name not in parameters and len(block) > 1:
                        block.remove(statement)
                        _Substitution({name: ast.Name(other, ast.Load())}).visit(function)


class _Constants(ast.NodeTransformer):
    """Writes `tl.full([1, 1], 2.0, tl.float32)` as 2.0 where it is an operand of arithmetic: a number takes the type of the tile."""

    def __init__(self, values: Mapping[str, float]):
        self.values = values

    def _number(self, node: ast.expr) -> ast.expr:
        if isinstance(node, ast.Name) and node.id in self.values:
            value = self.values[node.id]
            return ast.Constant(value) if value >= 0 else ast.UnaryOp(ast.USub(), ast.Constant(-value))
        return node

    def visit_BinOp(self, node: ast.BinOp) -> Any:
        self.generic_visit(node)
        sides = self._number(node.left), self._number(node.right)
        if sides[0] is node.left or sides[1] is node.right:  # one of them stays a tile
            node.left, node.right = sides
        return node

    def visit_Compare(self, node: ast.Compare) -> Any:
        self.generic_visit(node)
        if len(node.comparators) == 1:
            sides = self._number(node.left), self._number(node.comparators[0])
            if sides[0] is node.left or sides[1] is node.comparators[0]:
                node.left, node.comparators[0] = sides
        return node


def _inline_constants(function: ast.FunctionDef) -> None:
    stores, values = _stores(function), {}
    for block in _blocks(function):
        for statement in block:
            match statement:
                case ast.Assign([ast.Name(name)], ast.Call(ast.Attribute(ast.Name("tl"), "full"), [_, value, kind])):
                    if ast.unparse(kind) == "tl.float32" and stores[name] == 1:
                        try:
                            values[name] = float(ast.literal_eval(value))
                        except ValueError:  # float("inf"), a parameter
                            continue
    _Constants(values).visit(function)
    _drop_dead(function)


def _inlined(block: list[ast.stmt], reads: Counter[str], stable: set[str], stores: Counter[str]) -> list[ast.stmt]:
    """A block in which values that are read once stand where they are read."""
    done: list[ast.stmt] = []
    pending: dict[str, ast.Assign] = {}

    def write_out(names: Iterable[str]) -> None:
        done.extend(pending.pop(name) for name in list(names))

    for statement in block:
        if isinstance(statement, ast.For | ast.If | ast.While | ast.With | ast.FunctionDef):
            write_out(pending)
            for part in ("body", "orelse"):
                setattr(statement, part, _inlined(getattr(statement, part, []), reads, stable, stores))
            done.append(statement)
            continue
        used = [name for name in pending if name in set(_names(statement, ast.Load))]
        if used and not isinstance(statement, ast.Expr):
            values = {name: pending[name].value for name in used}
            whole = _Substitution(values).visit(ast.parse(ast.unparse(statement)).body[0])
            if len(ast.unparse(ast.fix_missing_locations(whole))) <= WIDTH:
                statement = whole
                for name in used:
                    del pending[name]
            else:
                write_out(used)
        else:
            write_out(used)
        target = _assigned(statement)
        if (
            isinstance(statement, ast.Assign)
            and target is not None
            and (reads[target], stores[target]) == (1, 1)
            and _pure(statement.value)
            and set(_names(statement.value, ast.Load)) <= stable | {n for n in reads if not stores[n]}
        ):
            pending[target] = statement
        else:
            done.append(statement)
    write_out(pending)
    return done


# ---- names -----------------------------------------------------------------------------------------------------------------


def _operation(value: ast.expr, names: Mapping[str, str]) -> str:
    """The name of the operation that makes a value."""
    match value:
        case ast.Subscript(inner, _) | ast.Call(ast.Attribute(inner, "to"), _):
            return _operation(inner, names)
        case ast.Call(ast.Attribute(ast.Name("tl"), "broadcast_to"), [inner, *_]):
            return _operation(inner, names)
        case ast.Call(ast.Attribute(ast.Name("tl"), "load"), [place, *_]):
            pointers = [n for n in _names(place, ast.Load) if n in names or re.search("ptr", n)]
            return re.sub(r"_?ptr_?", "", names.get(pointers[0], pointers[0])) if pointers else "loaded"
        case ast.Call(ast.Attribute(_, name), _):
            return name.rstrip("2") if name in ("max2", "min2") else name
        case ast.BinOp(_, operator, _) | ast.UnaryOp(operator, _):
            return _OPERATORS.get(type(operator), "value")
        case ast.Compare(_, [operator, *_], _):
            return _OPERATORS.get(type(operator), "compared")
        case ast.Name(name):
            return names.get(name, "value" if _TEMPORARY.match(name) else name)
    return "value"


def free_name(wanted: str, taken: set[str]) -> str:
    """A name like the wanted one that is not taken, no keyword and no builtin; it is taken then."""
    wanted = re.sub(r"\W|^_+", "", wanted) or "value"
    reserved = hasattr(builtins, wanted) or keyword.iskeyword(wanted)
    options = [wanted] * (not reserved) + [f"{wanted}_{i}" for i in range(1, len(taken) + 2)]
    found = next(name for name in options if name not in taken)
    taken.add(found)
    return found


def _renamed(function: ast.FunctionDef, names: dict[str, str]) -> ast.FunctionDef:
    stores = _stores(function)
    taken = {*_names(function, ast.Load), *stores, *(a.arg for a in function.args.args), *names.values()}

    for node in _in_order(function.body):
        if not isinstance(node, ast.Assign):
            continue
        for target in node.targets:
            for part in target.elts if isinstance(target, ast.Tuple) else [target]:
                if isinstance(part, ast.Name) and _TEMPORARY.match(part.id) and part.id not in names:
                    many = stores[part.id] > 1
                    names[part.id] = free_name("accumulated" if many else _operation(node.value, names), taken)
    return _Substitution({}, names).visit(function)


def _in_order(block: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in block:
        yield statement
        yield from _in_order([*getattr(statement, "body", ()), *getattr(statement, "orelse", ())])
