"""Hints for the L2 cache: which cache lines it replaces first (PTX ISA, "Cache eviction priority hints").

A matrix that a kernel reads once should not push out lines that the next kernel reads. Besides, modified lines must be written to memory
when they are pushed out. With `evict_first` the cache replaces lines of the streamed matrix itself. A policy is a number of 64 bits.
`createpolicy.fractional` with a fraction of 1.0 makes the same numbers (CUTLASS, `TMA::CacheHintSm90`).
"""

from __future__ import annotations

from typing import NamedTuple

from blocknb.ir.core import Op
from blocknb.passes.pipelining.stages import NO_POLICY_FROM
from blocknb.target import Target

POLICIES = {"evict_first": 0x12F0000000000000, "evict_last": 0x14F0000000000000}


class CacheHint(NamedTuple):
    """The policy of an access, or 0 for the default: parts of its instruction in PTX."""

    policy: int

    @classmethod
    def of(cls, op: Op, target: Target) -> CacheHint:
        """The hint that an op asks for. An op with a cache operator, an order or `volatile` has none, and GPUs before sm_80 take none. Nor
        does cp.async from sm_90 on."""
        attrs = op.attrs
        if target.capability < 80 or attrs.get("volatile") or attrs.get("sem") or attrs.get("cache"):
            return cls(0)
        if op.name == "copy_async" and target.capability >= NO_POLICY_FROM:
            return cls(0)
        return cls(POLICIES.get(attrs.get("evict") or "", 0))

    @property
    def suffix(self) -> str:
        """The modifier after the name of the instruction."""
        return ".L2::cache_hint" if self.policy else ""

    @property
    def operands(self) -> list[str]:
        """The policy as an operand of inline PTX, of the constraint "l"; none for the default."""
        return [f"i64 {self.policy}"] if self.policy else []

    def last(self, number: int) -> str:
        """The last operand of the instruction, with its comma, if it is operand `number` of the inline PTX."""
        return f", ${number}" if self.policy else ""
