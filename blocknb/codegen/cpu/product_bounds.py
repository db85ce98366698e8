"""Bounds of products: the microkernel skips the padding of its tiles.

Tiles are powers of two and matrices are not. Masked loads fill the operands' padding along k with zeros, whose products change no sum if
both operands are zero there. Rows and columns of the result that only masked stores read need no products at all. So the loops of the
microkernel end where these masks end. This is dead code elimination, for elements of a tile instead of instructions, with bounds that are
known at run time. LLVM's InstCombine calls the used parts demanded elements.
"""

from __future__ import annotations

from collections.abc import Sequence

from blocknb.codegen.cpu.context import VersionContext, VersionPart
from blocknb.codegen.cpu.product_terms import Term
from blocknb.codegen.cpu.uniformity import VARYING, Prefix, Uniform, UniformityAnalysis
from blocknb.ir.core import Op, Value


class ProductBounds(VersionPart):
    """Computes the bounds of products at run time."""

    def __init__(self, context: VersionContext):
        super().__init__(context)

    def of(self, op: Op) -> tuple[str, str, str]:
        """The i64 numbers of rows, columns and steps of k that a product needs. They may exceed the tile or be negative."""
        (m, n), k = op.result.type.shape, op.args[0].type.shape[1]
        terms = self.tiles.scope.bounded.get(op)
        if terms is None:
            return str(m), str(n), str(k)
        depth = [self._least(one, k) for one in terms.depth]
        steps = self.code.i64_most(*depth) if depth else str(k)
        return self._least(terms.rows, m), self._least(terms.columns, n), steps

    def _least(self, terms: Sequence[Term], size: int) -> str:
        """Where a tile ends by its conditions."""
        counts = [count for term in terms if (count := self._count(term, size)) is not None]
        return self.code.i64_least(*counts, str(size)) if counts else str(size)

    def _count(self, term: Term, size: int) -> str | None:
        """The number of positions at which a condition holds, if they come first."""
        value, index = term
        if not all(self._is_known(leaf) for leaf, _ in self.program.leaves(value, index)):
            return None
        axis = next(i for i in index if i is not None)
        forms = UniformityAnalysis(
            self.program, self.code, axis, size, {}, self.scalars.of, lambda value, index: VARYING, speculate=False
        )
        form = forms.of(value, index)
        prefix = forms.as_prefix(form) if isinstance(form, Prefix | Uniform) else None
        return None if prefix is None else prefix.count

    def _is_known(self, leaf: Value) -> bool:
        """Whether a leaf of a mask is a scalar that is computed before the product."""
        op = self.program.definition.get(leaf)
        return leaf in self.scalars or (op is not None and op.name == "const" and not leaf.type.shape)
