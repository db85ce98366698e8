"""Registers blocknb with an IPython shell: magics, completion, cards for kernels, the format of errors, and the page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from blocknb.notebook import (
    compile_status,
    completion,
    concurrent_compile,
    errors,
    extension,
    html,
    lines,
    progress,
    torch_magic,
    typed_cells,
)
from blocknb.notebook.magics import BlockMagics, TritonImports, options_of, start_line
from blocknb.runtime import compile_progress, parallel_compile

if TYPE_CHECKING:
    from blocknb.runtime.kernel import Kernel

SHOWN_TRIALS, TEXT_TRIALS = 100, 16


def show_kernel(kernel: Kernel, include: Any = None, exclude: Any = None) -> dict[str, Any]:
    """Renders a kernel for IPython: its newest card, or an example launch."""
    from blocknb.notebook.live import bundle_of

    return bundle_of(kernel)


def show_tuned(wrapper: Any, include: Any = None, exclude: Any = None) -> dict[str, Any]:
    """Renders an autotuner or heuristics for IPython: the card of the kernel inside."""
    return show_kernel(wrapper.kernel)


def show_tuning(tuning: Any, include: Any = None, exclude: Any = None) -> dict[str, Any]:
    """Renders the trials of an autotuner as a table."""
    rows = tuning.rows()
    if (more := len(rows) - 1 - SHOWN_TRIALS) > 0:
        rest = f"and {more} more; print(...) shows all"
        rows = [*rows[:-more], [*[""] * (len(rows[0]) - 1), rest]]
    return {"text/plain": tuning.text(TEXT_TRIALS), "text/html": html.figures((tuning.title, tuning.headline), rows)}


def register(shell: Any) -> None:
    """Registers magics, completion, error format and cards with a shell; a second call changes nothing."""
    if "blockkernel" in shell.magics_manager.magics["cell"]:
        return
    magics = BlockMagics(shell)
    shell.register_magics(magics)
    shell.configurables.append(magics)  # %config BlockMagics
    shell.events.register("pre_run_cell", magics.pre_run_cell)
    shell.events.register("post_run_cell", magics.post_run_cell)
    transforms = shell.input_transformers_cleanup
    shell.ast_transformers.append(TritonImports())
    names = [getattr(t, "__name__", "") for t in transforms]
    transforms.insert(names.index("cell_magic") if "cell_magic" in names else len(transforms), start_line)
    typed_cells.install(shell, lambda first: options_of(first) is not None)
    formatter = shell.display_formatter.mimebundle_formatter
    formatter.for_type_by_name("blocknb.runtime.kernel", "Kernel", show_kernel)
    for module, name in (("autotuner", "Autotuner"), ("derived", "Heuristics")):
        formatter.for_type_by_name(f"blocknb.tune.{module}", name, show_tuned)
    formatter.for_type_by_name("blocknb.tune.tuning", "Tuning", show_tuning)
    lines.register(shell)
    torch_magic.register(shell)
    completion.install(shell)
    errors.install(shell)
    if getattr(shell, "kernel", None) is not None:  # in Jupyter; a terminal has no page
        concurrent_compile.prepare()
        parallel_compile.shows = progress.of_compiles
        watch = compile_status.CompileWatch()
        compile_progress.begun = watch.begun
        shell.events.register("pre_run_cell", watch.cell_begins)
        extension.ask(extension.answers.append)
        shell.kernel.comm_manager.register_target(CARD_TARGET, _opened)


CARD_TARGET = "blocknb.card"


def _opened(comm: Any, message: dict[str, Any]) -> None:
    from blocknb.notebook import live

    live.opened(comm, message)
