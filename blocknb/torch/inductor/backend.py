"""The backend of torch.compile: `torch.compile(model, backend="blocknb")`."""

from __future__ import annotations

import functools
import warnings
from typing import Any

from blocknb.errors import LaunchError
from blocknb.torch.inductor import compile_pool, versions

#: Options of Inductor that need what blocknb does not have yet, with the values that do not.
REFUSED: dict[str, tuple[Any, ...]] = {
    "cpp_wrapper": (False,),
    "fx_wrapper": (False,),
    "cpu_backend": ("triton",),
    "cuda_backend": ("triton",),
    "triton.cooperative_reductions": (False,),
    "triton.force_cooperative_reductions": (False,),
    "triton.enable_pdl": (False,),
    "triton.autotune_at_compile_time": (False, None),
    "triton.store_cubin": (False,),
    "triton.proton_profiling": (False,),
}


class BlocknbFallback(UserWarning):
    """A graph runs eager because blocknb could not compile it and the option "fallback" is set."""


@functools.cache
def _ready() -> None:
    versions.check()
    from blocknb.torch.inductor import patches, results

    patches.install()
    results.install()


compile_pool.start()  # torch.compile imports this module before Dynamo traces the function


def _settings(mode: str | None, options: dict[str, Any] | None) -> tuple[dict[str, Any], bool]:
    """(the options of Inductor, whether a failed graph runs eager). Raises LaunchError for options that blocknb cannot honour."""
    from torch._inductor import list_mode_options

    settings = dict(list_mode_options(mode) if mode and mode != "default" else {})
    given = {name.replace("-", "_"): value for name, value in (options or {}).items()}
    fallback = bool(given.pop("fallback", False))
    for name, value in given.items():
        if name in REFUSED and value not in REFUSED[name]:
            raise LaunchError(
                f'backend="blocknb" cannot honour the option {name}={value!r} yet',
                hint=f"leave it out, or set it to {REFUSED[name][0]!r}",
            )
    return {**settings, **given}, fallback


def backend(graph: Any, inputs: Any, mode: str | None = None, options: dict[str, Any] | None = None, **_: Any) -> Any:
    """Compiles a graph of torch.compile, forward and backward. `mode` and `options` are those of torch.compile, and one more: with
    `options={"fallback": True}` a graph that blocknb cannot compile runs eager, with a warning. Raises Unsupported for other versions of
    torch, LaunchError for options that cannot work, and the compiler's KernelError with the user's line and the fused operators.
    """
    _ready()
    compile_pool.start()  # the pool ends if it is idle for long
    from torch._inductor.compile_fx import compile_fx, compile_fx_inner

    from blocknb.torch.inductor import graphs, patches
    from blocknb.torch.inductor.graph_breaks import break_after

    ended = break_after(graph)
    settings, fallback = _settings(mode, options)
    if settings.get("emulate_precision_casts") and any(getattr(value, "is_cuda", False) for value in inputs):
        raise LaunchError(
            'backend="blocknb" cannot honour the option emulate_precision_casts=True on a GPU: its code has fused multiply-adds',
            hint="leave the option out, or run the graph on the CPU",
        )

    def inner(graph: Any, example: Any, **kwargs: Any) -> Any:
        try:
            with patches.applied(settings), graphs.ended_by(ended):
                return compile_fx_inner(graph, example, **kwargs)
        except Exception as error:
            if not fallback:
                raise
            from torch._functorch.aot_autograd import make_boxed_func

            warnings.warn(f"blocknb could not compile a graph, which runs eager now: {error}", BlocknbFallback, 2)
            return make_boxed_func(graph.forward)

    with patches.applied(settings), graphs.ended_by(ended):
        return compile_fx(graph, inputs, inner_compile=inner)
