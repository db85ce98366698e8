"""Warp-specialized matrix products, written by hand at the memory level, as the passes make them from loops.

Tiles are 64 x 64 x 64; four consumer warps multiply, and one producer warp copies. `written` is the input of the passes after warp
specialization, and `finished` the output of the last pass.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from blocknb.ir.core import Func
from blocknb.ir.text import parse_func
from blocknb.ir.verify import verify
from blocknb.layouts import wgmma
from blocknb.layouts.linear import Layout
from blocknb.layouts.shared import swizzled
from blocknb.passes.memory.barriers import barriers
from blocknb.passes.memory.shared_memory_allocation import shared_memory_allocation
from blocknb.target import Target
from blocknb.trace import Notes

HOPPER = Target.parse("sm_90a")
TILE = 64  # along each of the three axes
BYTES = 2 * TILE * TILE  # bytes of a stage


@dataclass(frozen=True)
class Product:
    """One variant of the kernel.

    `order` tells for A and B whether rows (n) or columns (t) are contiguous; `tma_store` whether TMA stores the result; `late` whether a
    product stays in flight during the next iteration.
    """

    order: str = "nn"
    persistent: bool = False
    bulk: bool = False
    late: bool = True
    stages: int = 3
    registers: tuple[int, int] | None = None
    producers: int = 1

    @property
    def name(self) -> str:
        flags = ("persistent", "bulk", "late")
        return "_".join((self.order, *(flag for flag in flags if getattr(self, flag)), f"stages{self.stages}"))

    @property
    def text(self) -> str:
        """The IR before shared-memory allocation, without the barriers of the consumer warps."""
        a, b = (way == "t" for way in self.order)  # an operand is transposed: A along M, B along K
        layouts = {
            "#acc": accumulator(),
            "#rows": accumulator().slice(1),
            "#columns": accumulator().slice(0),
            "#row": accumulator().slice(1).expand_dims(1),
            "#column": accumulator().slice(0).expand_dims(0),
            "#a": wgmma.buffer((TILE, TILE), 16, 0, a, TILE),
            "#b": wgmma.buffer((TILE, TILE), 16, 1, not b, TILE),
            "#c": swizzled((TILE, TILE), 16, (1, 0)),
        }
        attrs = "num_warps=4" + ", persistent=True" * self.persistent
        consumers, producer = self.around(self.consumers(), "consumer"), self.around(self.producer(), "producer")
        registers = "" if self.registers is None else f", registers={self.registers}"
        lines = [f"{name} = {layout}" for name, layout in layouts.items()]
        lines += [f"{HEADER} memory {{{attrs}}} {{", *self.top()]
        lines += [f"roles {{warps=(4, {self.producers}){registers}}} {{", *consumers, "yield"]
        lines += ["} else {", *producer, "yield", "}", "}"]
        return "\n".join(line.strip() for part in lines for line in part.strip().splitlines()) + "\n"

    def top(self) -> list[str]:
        first = ("%m, %k", "%k, %m")[self.order[0] == "t"]
        second = ("%k, %n", "%n, %k")[self.order[1] == "t"]
        lines = [
            CONSTANTS,
            f"%ma = tensor_map %a, {first}, %lda : map<64x64xf16, 128>",
            f"%mb = tensor_map %b, {second}, %ldb : map<64x64xf16, 128>",
        ]
        if self.bulk:
            lines.append("%mc = tensor_map %c, %m, %n, %ldc : map<64x64xf16, 128>")
        lines += [
            f"%full = mbarriers {{stages={self.stages}, arrivals=1}} : mbarriers<{self.stages}>",
            f"%empty = mbarriers {{stages={self.stages}, arrivals=4}} : mbarriers<{self.stages}>",
            f"%ra = alloc {{align=1024}} : buffer<{self.stages}*64x64xf16, #a>",
            f"%rb = alloc {{align=1024}} : buffer<{self.stages}*64x64xf16, #b>",
        ]
        if self.bulk:
            lines.append("%rc = alloc {align=1024} : buffer<64x64xf16, #c>")
        return [*lines, f"%last = const {self.stages - 1} : i32", "barrier"]

    def around(self, body: list[str], role: str) -> list[str]:
        """The code of a role for one tile of the result, or for all tiles of a CTA."""
        parity = {"consumer": "%zero", "producer": "%one"}[role]
        names = {name: f"%{name}_{role}" for name in ("stage", "phase", "stages", "phases", "tile")}
        stage, phase, stages, phases, tile = names.values()
        place = f"""
        %pm_{role} = div {tile}, %across
        %pn_{role} = rem {tile}, %across
        %row_{role} = mul %pm_{role}, %size
        %column_{role} = mul %pn_{role}, %size"""
        if not self.persistent:
            lines = [f"{tile} = program_id 0", place]
            lines += [line.replace("FROM_STAGE", "%zero").replace("FROM_PHASE", parity) for line in body]
            return lines + (["store_wait {in_flight=0}"] if self.bulk and role == "consumer" else [])
        inner = [line.replace("FROM_STAGE", stage).replace("FROM_PHASE", phase) for line in body]
        lines = [
            f"%first_{role} = cta_id",
            f"%step_{role} = num_ctas",
            f"%tiles_{role} = num_programs 0",
            f"{stages}, {phases} = for {tile} = %first_{role} to %tiles_{role} step %step_{role} "
            f"iter({stage} = %zero, {phase} = {parity}) {{",
            place,
            *inner,
            f"yield %stage_{role}_end, %phase_{role}_end",
            "}",
        ]
        return lines + (["store_wait {in_flight=0}"] if self.bulk and role == "consumer" else [])

    def consumers(self) -> list[str]:
        """The code of the consumer warps for one tile."""
        late = f", in_flight={int(self.late)}" if self.late else ""
        total = "total" if self.late else "product"
        dot = f'%sum = dot %sa, %sb, %acc {{instr="wgmma.m64n64k16", warps=(4, 1), registers=False{late}}}'
        lines = [
            "%nothing = const 0.0 : tile<64x64xf32, #acc>",
            f"%{total}, %stage_consumer_end, %phase_consumer_end, %before_end = for %step = %zero to %iterations step %one "
            f"iter(%acc = %nothing, %at = FROM_STAGE, %turn = FROM_PHASE, %before = FROM_STAGE) {{",
            "await %full, %at, %turn",
            "%sa = stage %ra, %at",
            "%sb = stage %rb, %at",
            dot,
        ]
        if self.late:  # frees the stage that the previous product has read
            lines += ["%second = cmp gt %step, %zero", "arrive %empty, %before, %second"]
        else:
            lines += ["arrive %empty, %at"]
        lines += [advance("at", "turn"), "yield %sum, %at_next, %turn_next, %at", "}"]
        if self.late:
            lines += [
                "%product = dot_wait %total",
            ]
            if self.persistent:
                lines += ["%some = cmp gt %iterations, %zero", "arrive %empty, %before_end, %some"]
        lines += ["%result = cast %product : tile<64x64xf16, #acc>"]
        if self.bulk and self.persistent:
            lines += ["store_wait {in_flight=0}"]
        return lines + ([BULK_STORE] if self.bulk else [STORE])

    def producer(self) -> list[str]:
        """The code of the producer warp for one tile."""
        a = ("%row_producer, %depth", "%depth, %row_producer")[self.order[0] == "t"]
        b = ("%depth, %column_producer", "%column_producer, %depth")[self.order[1] == "t"]
        axes_a, axes_b = (("(0, 1)", "(1, 0)")[way == "t"] for way in self.order)
        return [
            "%stage_producer_end, %phase_producer_end = for %copy = %zero to %iterations step %one "
            "iter(%to = FROM_STAGE, %round = FROM_PHASE) {",
            "%depth = mul %copy, %size",
            "await %empty, %to, %round",
            f"expect %full, %to {{bytes={2 * BYTES}}}",
            "%ta = stage %ra, %to",
            f"copy_bulk %ta, %ma, %full, %to, {a} {{axes={axes_a}}}",
            "%tb = stage %rb, %to",
            f"copy_bulk %tb, %mb, %full, %to, {b} {{axes={axes_b}}}",
            advance("to", "round"),
            "yield %to_next, %round_next",
            "}",
        ]

    def written(self) -> Func:
        """The function before `shared_memory_allocation`; the verifier accepts it."""
        func = parse_func(self.text)
        verify(func)
        return func

    def finished(self) -> Func:
        """The function after all passes; the verifier accepts it."""
        func = barriers(
            shared_memory_allocation(self.written(), HOPPER, Notes("shared_memory_allocation")),
            HOPPER,
            Notes("barriers"),
        )
        verify(func)
        return func

    def arguments(self, m: int, n: int, k: int, seed: int = 0) -> list:
        """Arguments for a product of these extents; C is poisoned, and all strides are multiples of 16 bytes."""
        rng = np.random.default_rng(seed)
        arrays = []
        for way, shape in zip((*self.order, "n"), ((m, k), (k, n), (m, n)), strict=True):
            rows, columns = shape if way == "n" else shape[::-1]
            whole = rng.standard_normal((max(rows, 1), -(-max(columns, 1) // 8) * 8)).astype(np.float16)
            if len(arrays) == 2:
                whole[:] = np.nan
            arrays.append(whole[:rows, :columns] if way == "n" else whole[:rows, :columns].T)
        strides = [max(x.strides) // 2 if x.size else 8 for x in arrays]
        return [*arrays, m, n, k, *strides]

    @staticmethod
    def programs(m: int, n: int) -> int:
        """The grid's extent."""
        return -(-m // TILE) * -(-n // TILE)


HEADER = (
    "func @product(%a: ptr<f16> div 16, %b: ptr<f16> div 16, %c: ptr<f16> div 16, %m: i32 div 1, %n: i32 div 1, %k: i32 div 1, "
    "%lda: i32 div 8, %ldb: i32 div 8, %ldc: i32 div 8)"
)

CONSTANTS = """
%zero = const 0 : i32
%one = const 1 : i32
%size = const 64 : i32
%rest = const 63 : i32
%n_up = add %n, %rest
%across = div %n_up, %size
%k_up = add %k, %rest
%iterations = div %k_up, %size
"""

STORE = """
%i = arange 0 64 : tile<64xi32, #rows>
%j = arange 0 64 : tile<64xi32, #columns>
%row_first = splat %row_consumer : tile<64xi32, #rows>
%column_first = splat %column_consumer : tile<64xi32, #columns>
%rows = add %i, %row_first
%columns = add %j, %column_first
%ms = splat %m : tile<64xi32, #rows>
%ns = splat %n : tile<64xi32, #columns>
%row_in = cmp lt %rows, %ms
%column_in = cmp lt %columns, %ns
%lds = splat %ldc : tile<64xi32, #rows>
%row_at = mul %rows, %lds
%row_at2 = expand_dims %row_at {axis=1} : tile<64x1xi32, #row>
%column_at2 = expand_dims %columns {axis=0} : tile<1x64xi32, #column>
%row_in2 = expand_dims %row_in {axis=1} : tile<64x1xi1, #row>
%column_in2 = expand_dims %column_in {axis=0} : tile<1x64xi1, #column>
%row_at3 = broadcast %row_at2 : tile<64x64xi32, #acc>
%column_at3 = broadcast %column_at2 : tile<64x64xi32, #acc>
%row_in3 = broadcast %row_in2 : tile<64x64xi1, #acc>
%column_in3 = broadcast %column_in2 : tile<64x64xi1, #acc>
%offset = add %row_at3, %column_at3
%mask = and %row_in3, %column_in3
%base = splat %c : tile<64x64xptr<f16>, #acc>
%pointer = ptradd %base, %offset
store %pointer, %result, %mask
"""

BULK_STORE = """
local_store %rc, %result
fence
store_bulk %mc, %rc, %row_consumer, %column_consumer {axes=(0, 1)}
"""


def advance(stage: str, phase: str) -> str:
    """Advances to the next stage and its phase."""
    return f"""
    %{stage}_over = cmp ge %{stage}, %last
    %{stage}_up = add %{stage}, %one
    %{stage}_next = select %{stage}_over, %zero, %{stage}_up
    %{phase}_other = sub %one, %{phase}
    %{phase}_next = select %{stage}_over, %{phase}_other, %{phase}"""


def accumulator() -> Layout:
    row = wgmma.find("fp16", "fp16", "fp32")
    assert row is not None
    return wgmma.result_layout((TILE, TILE), wgmma.columns(row, TILE), (1, 1))


#: The variants that the tests of the interpreter and of the code run.
PRODUCTS = (
    Product(),
    Product(late=False, stages=2),
    Product("nt", bulk=True, stages=4),
    Product("tn", persistent=True),
    Product("nt", persistent=True, bulk=True),
)
