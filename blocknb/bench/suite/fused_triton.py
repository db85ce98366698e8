"""The peers "fused" and "fused ws" of attention's benchmarks: `fused_kernel` through Triton, without and with warp specialization.

Some configurations make Triton's compiler abort the process. So each warp-specialized one is first compiled in a child process.
"""

from __future__ import annotations

import functools
import importlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from blocknb.bench.suite.definition import Config
from blocknb.bench.suite.triton_source import loaded, rewritten

KERNEL = Path(__file__).with_name("fused_kernel.py")


@functools.cache
def fused_kernel() -> Any:
    """The kernel, compiled by Triton. Raises ImportError without Triton."""
    importlib.import_module("triton")
    return loaded("fused", rewritten(KERNEL.read_text(), "triton")).fused_kernel


def launch(arrays: dict[str, Any], causal: bool, roles: bool, tile: Config) -> Callable[[], Any]:
    """A call that computes attention of torch's tensors (batch, heads, tokens, head), contiguous, into `out`."""
    import torch
    from triton.tools.tensor_descriptor import TensorDescriptor

    if roles and (why := aborts(str(arrays["q"].dtype), arrays["q"].shape[-1], json.dumps(tile, sort_keys=True))):
        raise RuntimeError(why)
    batch, heads, tokens, head = arrays["q"].shape
    rows, columns = tile["ROWS"], tile["COLUMNS"]
    if tokens % rows or tokens % columns or rows % columns:
        raise ValueError(f"{tokens} tokens are not a multiple of {rows} queries and {columns} keys")
    blocks = {"q": rows, "k": columns, "v": columns, "out": rows}
    described = [TensorDescriptor.from_tensor(arrays[x].view(-1, head), [n, head]) for x, n in blocks.items()]
    logsumexp = torch.empty(batch * heads * tokens, device=arrays["q"].device, dtype=torch.float32)
    factor = head**-0.5 * 1.4426950408889634
    grid = (tokens // rows, batch * heads)
    options = {"num_warps": tile["num_warps"], "num_stages": tile["num_stages"]}
    kernel = fused_kernel()
    return lambda: kernel[grid](
        *described,
        logsumexp,
        factor,
        tokens,
        CAUSAL=causal,
        ROWS=rows,
        COLUMNS=columns,
        HEAD=head,
        ROLES=roles,
        **options,
    )


@functools.cache
def aborts(dtype: str, head: int, tile: str) -> str:
    """Compiles the warp-specialized kernel in a child process. Returns the error, or ""."""
    arguments = [
        sys.executable,
        "-m",
        "blocknb.bench.suite.fused_triton",
        json.dumps([dtype, head, json.loads(tile)]),
    ]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=300)
    return "" if done.returncode == 0 else f"Triton's compiler failed ({done.returncode}): {done.stderr.strip()[-100:]}"


def compile(dtype: str, head: int, tile: Config, causal: bool = False, roles: bool = True) -> None:
    """Compiles the kernel for Hopper, in this process."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    element = {"torch.float16": "fp16", "torch.bfloat16": "bf16"}[dtype]
    blocks = {"queries": tile["ROWS"], "keys": tile["COLUMNS"], "values": tile["COLUMNS"], "results": tile["ROWS"]}
    kinds: dict[str, str] = {name: f"tensordesc<{element}[{rows}, {head}]>" for name, rows in blocks.items()}
    kinds |= {"logsumexp": "*fp32", "factor": "fp32", "tokens": "i32"}
    constants = {"CAUSAL": causal, "ROWS": tile["ROWS"], "COLUMNS": tile["COLUMNS"], "HEAD": head, "ROLES": roles}
    kinds |= dict.fromkeys(constants, "constexpr")
    places = {(list(kinds).index(name),): value for name, value in constants.items()}
    source = ASTSource(fused_kernel(), signature=kinds, constexprs=places)
    options = {"num_warps": tile["num_warps"], "num_stages": tile["num_stages"]}
    triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)


if __name__ == "__main__":
    compile(*json.loads(sys.argv[1]))
