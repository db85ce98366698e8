"""Traversals of the IR's graphs: each node once, lazily, and from stacks of their own."""

from blocknb.ir.build import Builder
from blocknb.ir.core import Op, Value
from blocknb.ir.traversal import backward_slice, breadth_first, forward_slice, postorder, reachable
from blocknb.language import types as t

DIAMOND = {"a": "bc", "b": "d", "c": "d", "d": ""}


def test_traversal_yields_each_node_once() -> None:
    assert "".join(reachable("a", DIAMOND.__getitem__)) == "acdb"
    assert "".join(breadth_first("a", DIAMOND.__getitem__)) == "abcd"
    assert "".join(postorder("a", DIAMOND.__getitem__)) == "dcba"


def test_traversal_of_a_cycle_terminates() -> None:
    cycle = {0: [1], 1: [2], 2: [0]}
    assert list(reachable([0], cycle.__getitem__)) == list(breadth_first([0], cycle.__getitem__)) == [0, 1, 2]


def test_traversal_is_lazy() -> None:
    asked = []

    def successors(node: int) -> list[int]:
        asked.append(node)
        return [node + 1]

    assert next(x for x in reachable([0], successors) if x == 3) == 3
    assert asked == [0, 1, 2]


def test_chain_deeper_than_pythons_stack_can_be_traversed() -> None:
    assert next(postorder([0], lambda n: [n + 1] if n < 100_000 else [])) == 100_000


def test_backward_slice_stops_at_the_given_values() -> None:
    emit = Builder("test")
    one = emit.const(1, t.int32)
    two = emit.value("add", one, one)
    four = emit.value("mul", two, two)
    emit.value("neg", four)
    ops = emit.finish()
    made = {value: op for op in ops for value in op.results}
    users: dict[Value, list[tuple[Op, int]]] = {}
    for op in ops:
        for i, value in enumerate(op.args):
            users.setdefault(value, []).append((op, i))
    assert [op.name for op in backward_slice([four], made)] == ["mul", "add", "const"]
    assert [op.name for op in backward_slice([four], made, lambda op: op.name != "add")] == ["mul", "add"]
    assert [op.name for op in forward_slice([one], users)] == ["add", "mul", "neg"]
    assert [op.name for op in forward_slice([one], users, lambda op: op.name == "add")] == ["add", "mul"]
