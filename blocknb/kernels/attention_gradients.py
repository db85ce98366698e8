"""The gradients of attention: dq, dk and dv from dout, with the row sums that the forward pass stored.

Let P = exp(scale q k^T - logsumexp), dP = dout v^T and dS = P (dP - delta), where delta is a row's sum of out * dout. Then dv = P^T dout,
dk = scale dS^T q and dq = scale dS k. A program has a block of keys and loops over the queries that see it. It computes the transposed
products k q^T and v dout^T. So P^T and dS^T stay in registers as the left operands of the next products. A head of k and v sums over all
heads of q that share it. There are two ways to compute dq:

- The same programs multiply dS by their keys and add the products to fp32 sums of dq in memory. One more kernel converts the sums to dq.
  This takes five products. The order of the additions varies, so the last bits of dq differ from run to run, as with cuDNN and
  FlashAttention.
- A second kernel computes the scores again, in programs that have a block of queries, as the forward pass does. This takes seven
  products, and the result is the same in every run.

Independent products stand next to each other, so that one runs while the result of the other is processed. If there are enough registers,
an iteration computes the scores of the next one at its end (AHEAD), while the sums of dq are added. Each thread loads logsumexp and delta
for the elements of a product that it holds. Shared memory would cost a barrier per iteration. The logarithms are loaded one iteration
early. Source: Dao, FlashAttention-2 (2023).
"""

from __future__ import annotations

import math
from typing import Any

import blocknb
import blocknb.language as bl
from blocknb.kernels import heads
from blocknb.kernels.attention import head_of
from blocknb.kernels.heads import Heads, HeadTiles, Tile, check_arrays, heads_of
from blocknb.kernels.strides import empty

LOG2E = bl.constexpr(1.4426950408889634)
#: Heads of k and v whose blocks of a causal mask take turns in the grid, so that the longest programs start first. A model of 8 such heads
#: with 2048 keys has 16 blocks each. If the blocks of one head ran one after another, the last programs would run alone for a quarter of
#: the time.
MOST_INTERLEAVED_HEADS = 8
BLOCK = bl.constexpr(128)  # queries; scratch memory holds whole blocks of them


@blocknb.kernel
def line_of(numbers, batch, heads, head, queries, start, ROWS: bl.constexpr):
    """Pointers to the logarithms of the sums of a block of queries. Their deltas are `padded(queries)` numbers further."""
    line = (batch.to(bl.int64) * heads + head) * 2 * padded(queries)
    return numbers + (line + start) + bl.arange(0, ROWS)


@blocknb.kernel
def padded(queries):
    """The length of a line of numbers: whole blocks of queries."""
    return bl.cdiv(queries, BLOCK) * BLOCK


@blocknb.kernel
def place_of(sums, batch, heads, head, queries, start, ROWS: bl.constexpr, WIDTH: bl.constexpr):
    """Pointers to the sums of dq for a block of queries. The elements of a product that a thread holds are contiguous there."""
    line = (batch.to(bl.int64) * heads + head) * padded(queries)
    return sums + (line + start) * WIDTH + bl.arange(0, ROWS * WIDTH)


@blocknb.kernel
def numbers_kernel(
    out, dout, logsumexp, numbers, sums, out_at, dout_at, queries, width, ROWS: bl.constexpr, WIDTH: bl.constexpr
):  # fmt: skip
    """Writes the two numbers per query that `gradients_kernel` reads, and zeros the sums.

    Queries beyond the last one get numbers that make their contribution zero.
    """
    block, head, batch = bl.program_id(0), bl.program_id(1), bl.program_id(2)
    rows = block * ROWS + bl.arange(0, ROWS)
    result = head_of(out, batch, head, out_at, queries, width, ROWS, WIDTH).load([block * ROWS, 0]).to(bl.float32)
    given = head_of(dout, batch, head, dout_at, queries, width, ROWS, WIDTH).load([block * ROWS, 0]).to(bl.float32)
    line = (batch.to(bl.int64) * bl.num_programs(1) + head) * queries
    log = bl.load(logsumexp + line + rows, mask=rows < queries, other=float("inf")) * LOG2E
    line = line_of(numbers, batch, bl.num_programs(1), head, queries, block * ROWS, ROWS)
    bl.store(line, log)
    bl.store(line + padded(queries), bl.sum(result * given, axis=1))
    if sums is not None:
        places = place_of(sums, batch, bl.num_programs(1), head, queries, block * ROWS, ROWS, WIDTH)
        bl.store(places, bl.zeros((ROWS * WIDTH,), bl.float32))


# A second stage of keys and values, for the next program of a persistent CTA, would take the room of the queries.
@blocknb.kernel(without=("persistent_grid",))
def gradients_kernel(
    q, k, v, dout, dk, dv, sums, numbers, q_at, k_at, v_at, dout_at, dk_at, dv_at, sums_at, scale, queries, keys, width,
    group, shift, CAUSAL: bl.constexpr, AHEAD: bl.constexpr, ROWS: bl.constexpr, COLUMNS: bl.constexpr, WIDTH: bl.constexpr,
    PRECISION: bl.constexpr = "tf32", INTERLEAVED_HEADS: bl.constexpr = 1,
):  # fmt: skip
    """Computes dk and dv for COLUMNS keys of one head of k and v; adds the contribution of these keys to `sums` if there are any.

    The program ids are the block of keys (the blocks of INTERLEAVED_HEADS heads take turns), the group of heads, and the batch.
    """
    block, batch = bl.program_id(0) // INTERLEAVED_HEADS, bl.program_id(2)
    head = bl.program_id(1) * INTERLEAVED_HEADS + bl.program_id(0) % INTERLEAVED_HEADS
    first = block * COLUMNS
    columns = first + bl.arange(0, COLUMNS)
    key = head_of(k, batch, head, k_at, keys, width, COLUMNS, WIDTH).load([first, 0])
    value = head_of(v, batch, head, v_at, keys, width, COLUMNS, WIDTH).load([first, 0])
    begin, whole = 0, 0  # the first query that sees a key of the block, and the first that sees all of them
    if CAUSAL:
        begin = max(first - shift, 0) // ROWS * ROWS
        whole = first + COLUMNS - 1 - shift
    if sums is not None and first + COLUMNS > keys:
        whole = queries
    seen = bl.where(columns < keys, columns - shift, queries)  # by queries from that one on
    dkey = bl.zeros((COLUMNS, WIDTH), bl.float32)
    dvalue = bl.zeros((COLUMNS, WIDTH), bl.float32)
    heads = bl.num_programs(1) * INTERLEAVED_HEADS * group
    for member in range(group):
        own = head * group + member
        queries_of = head_of(q, batch, own, q_at, queries, width, ROWS, WIDTH)
        given_of = head_of(dout, batch, own, dout_at, queries, width, ROWS, WIDTH)
        line = line_of(numbers, batch, heads, own, queries, 0, ROWS)
        log = bl.load(line + begin)
        if AHEAD:
            scores = bl.dot(key, queries_of.load([begin, 0]).T, input_precision=PRECISION)
        for start in range(begin, queries, ROWS):
            query = queries_of.load([start, 0])
            if not AHEAD:
                scores = bl.dot(key, query.T, input_precision=PRECISION)
            given = given_of.load([start, 0])
            dpowers = bl.dot(value, given.T, input_precision=PRECISION)
            powers = bl.exp2(scores * scale - log[None, :])
            if CAUSAL or sums is not None:
                if start < whole:
                    if CAUSAL:
                        powers = bl.where(seen[:, None] <= bl.arange(0, ROWS)[None, :] + start, powers, 0.0)
                    else:
                        powers = bl.where((columns < keys)[:, None], powers, 0.0)
            delta = bl.load(line + padded(queries) + start)
            dvalue = bl.dot(powers.to(given.dtype), given, dvalue, input_precision=PRECISION)
            dscores = (powers * (dpowers - delta[None, :])).to(query.dtype)
            dkey = bl.dot(dscores, query, dkey, input_precision=PRECISION)
            if sums is not None:
                part = bl.dot(dscores.T, key, input_precision=PRECISION)
            if AHEAD:
                scores = bl.dot(key, queries_of.load([start + ROWS, 0]).T, input_precision=PRECISION)
            log = bl.load(line + start + ROWS)
            if sums is not None:
                if sums_at is not None:
                    head_of(sums, batch, own, sums_at, queries, WIDTH, ROWS, WIDTH).atomic_add([start, 0], part)
                else:
                    transposed = bl.permute(bl.reshape(part, (ROWS // 8, 8, WIDTH // 8, 8)), (0, 2, 1, 3))
                    places = place_of(sums, batch, heads, own, queries, start, ROWS, WIDTH)
                    bl.atomic_add(places, bl.reshape(transposed, (ROWS * WIDTH,)), sem="relaxed")
    dkey *= scale / LOG2E
    head_of(dk, batch, head, dk_at, keys, width, COLUMNS, WIDTH).store([first, 0], dkey.to(dk.dtype.element_ty))
    head_of(dv, batch, head, dv_at, keys, width, COLUMNS, WIDTH).store([first, 0], dvalue.to(dv.dtype.element_ty))


@blocknb.kernel
def query_gradients_kernel(
    q, k, v, dout, dq, numbers, q_at, k_at, v_at, dout_at, dq_at, scale, queries, keys, width, group, shift,
    CAUSAL: bl.constexpr, ROWS: bl.constexpr, COLUMNS: bl.constexpr, WIDTH: bl.constexpr,
    PRECISION: bl.constexpr = "tf32",
):  # fmt: skip
    """Computes dq for a block of ROWS queries; the loop is that of the forward pass."""
    block, head, batch = bl.program_id(0), bl.program_id(1), bl.program_id(2)
    if CAUSAL:
        block = bl.num_programs(0) - 1 - block
    first = block * ROWS
    rows = first + bl.arange(0, ROWS)
    query = head_of(q, batch, head, q_at, queries, width, ROWS, WIDTH).load([first, 0])
    given = head_of(dout, batch, head, dout_at, queries, width, ROWS, WIDTH).load([first, 0])
    keys_of = head_of(k, batch, head // group, k_at, keys, width, COLUMNS, WIDTH)
    values_of = head_of(v, batch, head // group, v_at, keys, width, COLUMNS, WIDTH)
    line = line_of(numbers, batch, bl.num_programs(1), head, queries, first, ROWS)
    log, delta = bl.load(line), bl.load(line + padded(queries))
    seen, whole = keys, keys // COLUMNS * COLUMNS
    if CAUSAL:
        seen = min(keys, max(first + ROWS + shift, 0))
        whole = min(whole, (first + shift + 1) // COLUMNS * COLUMNS)
    dquery = bl.zeros((ROWS, WIDTH), bl.float32)
    for start in range(0, seen, COLUMNS):
        key = keys_of.load([start, 0])
        scores = bl.dot(query, key.T, input_precision=PRECISION)
        dpowers = bl.dot(given, values_of.load([start, 0]).T, input_precision=PRECISION)
        powers = bl.exp2(scores * scale - log[:, None])
        if start >= whole:
            columns = start + bl.arange(0, COLUMNS)
            visible = (columns < keys)[None, :]
            if CAUSAL:
                visible = visible & (columns[None, :] <= (rows + shift)[:, None])
            powers = bl.where(visible, powers, 0.0)
        dscores = powers * (dpowers - delta[:, None])
        dquery = bl.dot(dscores.to(key.dtype), key, dquery, input_precision=PRECISION)
    dquery *= scale / LOG2E
    head_of(dq, batch, head, dq_at, queries, width, ROWS, WIDTH).store([first, 0], dquery.to(dq.dtype.element_ty))


@blocknb.kernel
def summed_kernel(dq, sums, dq_at, sums_at, scale, queries, width, ROWS: bl.constexpr, WIDTH: bl.constexpr):
    """Converts the fp32 sums to dq."""
    block, head, batch = bl.program_id(0), bl.program_id(1), bl.program_id(2)
    if sums_at is not None:
        found = head_of(sums, batch, head, sums_at, queries, WIDTH, ROWS, WIDTH).load([block * ROWS, 0])
    else:
        transposed = bl.load(place_of(sums, batch, bl.num_programs(1), head, queries, block * ROWS, ROWS, WIDTH))
        transposed = bl.permute(bl.reshape(transposed, (ROWS // 8, WIDTH // 8, 8, 8)), (0, 2, 1, 3))
        found = bl.reshape(transposed, (ROWS, WIDTH))
    dquery = found * (scale / LOG2E)
    head_of(dq, batch, head, dq_at, queries, width, ROWS, WIDTH).store(
        [block * ROWS, 0], dquery.to(dq.dtype.element_ty)
    )


#: Tiles of the programs that have COLUMNS keys and loop over ROWS queries per step, and of the programs that have queries.
KEY_TILES = HeadTiles(
    {64: (64, 128, 8, 4), 128: (64, 128, 8, 3), 256: (64, 64, 8, 1)},
    {64: (32, 128, 8, 2), 128: (32, 64, 8, 2), 256: (16, 16, 8, 2)},
    exact={64: (32, 32, 8, 2), 128: (32, 32, 8, 1), 256: (16, 16, 8, 1)},
)
QUERY_TILES = HeadTiles(
    {64: (128, 128, 8, 3), 128: (128, 64, 8, 3), 256: (128, 64, 8, 1)},
    {64: (128, 64, 8, 2), 128: (128, 32, 8, 2), 256: (64, 16, 8, 2)},
    exact={64: (32, 32, 8, 2), 128: (32, 32, 8, 1), 256: (16, 16, 8, 1)},
)
SOME_ROWS = 64
AHEAD = {64, 128}  # widths of heads whose iterations compute the scores of the next one, where programs add to dq
#: Tiles of programs that have keys and add to dq; and the (width, causal) pairs for which this was measured to be faster.
ADDING = HeadTiles({64: (64, 128, 8, 2), 128: (64, 128, 8, 2)}, {})
#: The same with a causal mask where heads of q share one of k and v. There are few programs of unequal length, so two smaller ones per
#: multiprocessor balance better. 32 heads of q and 8 of k, with 4 x 2048 positions on an H200, take 0.43 ms instead of 0.53.
GROUPED = HeadTiles({64: (64, 64, 4, 2), 128: (64, 128, 8, 2)}, {})
FASTER = {(64, False), (64, True), (128, False)}
BOXES: set[tuple[int, bool]] = set()  # (width, causal) pairs whose sums are rows of numbers, to which TMA adds


def _check_rows(tile: Tile | None) -> None:
    """Raises ValueError unless the number of queries of a tile that adds to dq divides a block."""
    if tile is not None and (tile["ROWS"] < 8 or BLOCK.value % tile["ROWS"]):
        raise ValueError(
            f"a tile has {tile['ROWS']} queries per iteration; programs that add to dq need a divisor of {BLOCK.value}, at least 8"
        )


def attention_backward(
    q: Any, k: Any, v: Any, out: Any, logsumexp: Any, dout: Any, dq: Any = None, dk: Any = None, dv: Any = None, *,
    causal: bool = False, scale: float | None = None, shift: int = 0, key_tile: Tile | None = None,
    query_tile: Tile | None = None, tile: Tile | None = None, deterministic: bool = False,
    input_precision: str = "tf32",
) -> tuple[Any, Any, Any]:  # fmt: skip
    """Computes dq, dk and dv from dout, and from out and logsumexp as `attention` wrote them with the same options.

    Each gradient has the shape and dtype of its array, and any strides with 1 along the last axis; a new array is made for None. A query
    that sees no key contributes nothing, and the gradient of a key that no query sees is zero. Scratch memory holds two fp32 numbers per
    query. If adding to dq in memory is faster (FASTER), scratch memory also holds dq in fp32. The last bits of dq then differ from run to
    run. `deterministic` turns this off.

    Tiles and `input_precision` are as in `attention`. `tile` is that of programs that add to dq (on any device); its ROWS must divide 128.
    Without it, `key_tile` and `query_tile` are those of programs that have keys and of programs that have queries. Raises ValueError as
    `attention` does.
    """
    found = heads_of(q, k, v)
    _check_rows(tile)
    dq, dk, dv = (
        empty(like, tuple(like.shape), found.dtype) if array is None else array
        for array, like in ((dq, q), (dk, k), (dv, v))
    )
    check_arrays(found, out=out, logsumexp=logsumexp, dout=dout, dq=dq, dk=dk, dv=dv)
    factor = found.scale(scale) / math.log(2)
    if found.empty:
        for array in (dq, dk, dv):
            array[...] = 0
        return dq, dk, dv
    sizes = (factor, found.queries, found.keys, found.width, found.group, shift)
    precision = found.precision(input_precision)
    constants = {"CAUSAL": causal, "WIDTH": found.block, "PRECISION": precision}
    if not (tile or deterministic or key_tile or query_tile):
        tile = adding_tile(found, q, causal)
    of_keys = tile or key_tile or KEY_TILES.choose(q, found.block, precision)
    blocks, rows = blocknb.cdiv(found.queries, BLOCK.value), {"ROWS": SOME_ROWS, "WIDTH": found.block}
    count = found.batch * found.heads * blocks * BLOCK.value
    numbers = empty(q, (2 * count + BLOCK.value,), "float32")  # kernels read a block beyond the last one
    sums = None if tile is None else empty(q, (count * found.block,), "float32")
    lines, sums_at = blocks * BLOCK.value * found.block, None
    if sums is not None and (found.block, causal) in BOXES:
        sums_at = (found.heads * lines, lines, found.block)
    numbers_kernel[(blocks * BLOCK.value // SOME_ROWS, found.heads, found.batch)](
        out, dout, logsumexp, numbers, sums, *found.steps(out, dout), found.queries, found.width, **rows
    )
    shared = found.heads // found.group
    turns = math.gcd(shared, MOST_INTERLEAVED_HEADS) if causal else 1
    gradients_kernel[(blocknb.cdiv(found.keys, of_keys["COLUMNS"]) * turns, shared // turns, found.batch)](
        q, k, v, dout, dk, dv, sums, numbers, *found.steps(q, k, v, dout, dk, dv), sums_at, *sizes,
        AHEAD=tile is not None and ahead(found, q), INTERLEAVED_HEADS=turns, **constants, **of_keys,
    )  # fmt: skip
    if tile is not None:
        summed_kernel[(blocknb.cdiv(found.queries, SOME_ROWS), found.heads, found.batch)](
            dq, sums, *found.steps(dq), sums_at, factor, found.queries, found.width, **rows
        )
        return dq, dk, dv
    of_queries = query_tile or QUERY_TILES.choose(q, found.block, precision)
    query_gradients_kernel[(blocknb.cdiv(found.queries, of_queries["ROWS"]), found.heads, found.batch)](
        q, k, v, dout, dq, numbers, *found.steps(q, k, v, dout, dq), *sizes, **constants, **of_queries
    )
    return dq, dk, dv


def ahead(found: Heads, q: Any) -> bool:
    """Whether an iteration computes the scores of the next one, which needs enough registers."""
    return heads.capability(q) == 90 and found.block in AHEAD and found.dtype != "float32"


def adding_tile(found: Heads, q: Any, causal: bool) -> Tile | None:
    """The tile of programs that add to dq, None where a second kernel is faster."""
    if not adds(found, q, causal):
        return None
    return (GROUPED if causal and found.group > 1 else ADDING).choose(q, found.block)


def adds(found: Heads, q: Any, causal: bool) -> bool:
    """Whether adding to dq in memory is faster than a second kernel."""
    return heads.capability(q) == 90 and (found.block, causal) in FASTER and found.dtype != "float32"
