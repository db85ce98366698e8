"""Linear algebra over GF(2), the field of one bit, where addition is XOR.

A vector is a Python int (bit i is coordinate i), and a matrix is the list of its columns. So a matrix times a vector is the XOR of the
columns whose bit is set. One Gaussian elimination answers the four questions of layouts. `rank` counts the independent vectors. `solve`
finds vectors that add up to a given one. `Span.kernel` has the combinations that add up to zero. `inverse` inverts a matrix. The
elimination is incremental, and keeps with every reduced row the mask of the original vectors whose XOR it is. Vectors have at most some
twenty bits here, so ints beat arrays by a wide margin.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class Span:
    """The span of a growing list of vectors; `add` them in order, then ask.

    `kernel` lists the masks of added vectors that XOR to zero. Each of them has the newest vector in its highest bit. So bit i is the
    highest of a kernel mask exactly when vector i depends on the ones before it.
    """

    def __init__(self, vectors: Iterable[int] = ()):
        self._rows: dict[int, tuple[int, int]] = {}  # leading bit -> (reduced vector, mask of the vectors added)
        self._count = 0
        self.kernel: list[int] = []
        for vector in vectors:
            self.add(vector)

    def _reduce(self, vector: int) -> tuple[int, int]:
        mask = 0
        while vector:
            row = self._rows.get(vector.bit_length())
            if row is None:
                break
            vector ^= row[0]
            mask ^= row[1]
        return vector, mask

    def add(self, vector: int) -> bool:
        """Adds a vector; true if it was independent of those before it."""
        rest, mask = self._reduce(vector)
        mask ^= 1 << self._count
        self._count += 1
        if rest:
            self._rows[rest.bit_length()] = (rest, mask)
        else:
            self.kernel.append(mask)
        return rest != 0

    def solve(self, target: int) -> int | None:
        """The mask of added vectors that XOR to `target`, or None when it lies outside the span."""
        rest, mask = self._reduce(target)
        return None if rest else mask

    def __contains__(self, vector: int) -> bool:
        return self._reduce(vector)[0] == 0

    @property
    def rank(self) -> int:
        return len(self._rows)


def apply(columns: Sequence[int], vector: int) -> int:
    """Matrix times vector: the XOR of the columns whose bit is set in `vector`."""
    result = 0
    for position, column in enumerate(columns):
        if vector >> position & 1:
            result ^= column
    return result


def combinations(vectors: Iterable[int]) -> list[int]:
    """The XOR of the vectors that each mask selects, for the masks 0, 1, 2, ..."""
    found = [0]
    for vector in vectors:
        found += [other ^ vector for other in found]
    return found


def rank(vectors: Iterable[int]) -> int:
    """The number of independent vectors."""
    return Span(vectors).rank


def solve(vectors: Iterable[int], target: int) -> int | None:
    """The mask of `vectors` that XOR to `target`, or None when there is none."""
    return Span(vectors).solve(target)


def inverse(columns: Sequence[int]) -> list[int]:
    """The columns of the inverse of a square matrix. Raises ValueError when it is singular."""
    span = Span(columns)
    if span.rank < len(columns) or any(column >> len(columns) for column in columns):
        raise ValueError("the matrix has no inverse over GF(2)")
    solutions = [span.solve(1 << position) for position in range(len(columns))]
    return [solution for solution in solutions if solution is not None]


def parity(value: int) -> int:
    """1 when an odd number of bits is set: the dot product of two vectors is the parity of their AND."""
    return value.bit_count() & 1
