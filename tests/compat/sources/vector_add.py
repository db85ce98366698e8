"""A vector addition as projects write it for Triton: kernel, wrapper, benchmark."""

import torch
import triton
import triton.language as tl

DEVICE = triton.runtime.driver.active.get_active_torch_device()


@triton.jit
def add_kernel(a_ptr, b_ptr, sum_ptr, numel, BLOCK: tl.constexpr):
    start = tl.program_id(axis=0) * BLOCK
    idx = start + tl.arange(0, BLOCK)
    inside = idx < numel
    a = tl.load(a_ptr + idx, mask=inside)
    b = tl.load(b_ptr + idx, mask=inside)
    tl.store(sum_ptr + idx, a + b, mask=inside)


def add(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    assert a.device == b.device == DEVICE or a.device.type == DEVICE.type
    total = torch.empty_like(a)
    numel = total.numel()
    add_kernel[lambda meta: (triton.cdiv(numel, meta["BLOCK"]),)](a, b, total, numel, BLOCK=1024)
    return total


@triton.testing.perf_report(
    triton.testing.Benchmark(
        x_names=["size"],
        x_vals=[2**i for i in (8, 9)],
        x_log=True,
        line_arg="provider",
        line_vals=["triton", "torch"],
        line_names=["Triton", "Torch"],
        styles=[("blue", "-"), ("green", "-")],
        ylabel="GB/s",
        plot_name="vector-add",
        args={},
    )
)
def bandwidth(size, provider, rep=2):
    a, b = (torch.rand(size, device=DEVICE) for _ in range(2))
    call = (lambda: a + b) if provider == "torch" else (lambda: add(a, b))
    ms, low, high = triton.testing.do_bench(call, warmup=1, rep=rep, quantiles=[0.5, 0.2, 0.8])

    def gbps(ms):
        return 3 * a.numel() * a.element_size() * 1e-6 / ms

    return gbps(ms), gbps(high), gbps(low)
