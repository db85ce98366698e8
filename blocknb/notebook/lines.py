"""The line magics: `%blockview KERNEL`, `%blockbench EXPR...`, `%blockdiff A B`, `%roofline KERNEL...`,
and those of the course (`course`).

Each shows one output and returns nothing. `LINES` maps each name to its function and its completion; other modules with line magics add
to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from IPython.core.error import UsageError

from blocknb.notebook import course
from blocknb.notebook.expressions import Expression
from blocknb.notebook.options import split_words, unquoted


@dataclass(frozen=True)
class LineMagic:
    """`run(line, shell)` executes the magic, and its docstring is the help; `complete(word, shell)` lists completions of a word."""

    run: Callable[[str, Any], None]
    complete: Callable[[str, Any], Sequence[str]]


def blockview(line: str, shell: Any) -> None:
    """Show the newest card of a kernel, or that of a version: `%blockview softmax`, `%blockview softmax@2`."""
    from blocknb.notebook import diffs, live
    from blocknb.notebook.live import bundle_of
    from blocknb.notebook.observe import record_of

    words = line.split()
    if len(words) != 1:
        raise UsageError("%blockview takes the name of a kernel: %blockview softmax")
    if "@" in words[0]:
        shell.display_pub.publish(live.bundle(diffs.side(words[0], shell).card))
        return
    kernel = diffs.kernel_of(words[0], shell)
    if record_of(kernel) is None:
        raise UsageError(bundle_of(kernel)["text/plain"])
    shell.display_pub.publish(bundle_of(kernel))


def blockbench(line: str, shell: Any) -> None:
    """Compare the times of expressions: `%blockbench softmax(x) np.exp(x)`. Put an expression with blanks in quotes.

    The expressions run in turns, so that a change of the clock rate affects all of them. On a GPU, events measure each with a cold L2
    cache. The expressions run on copies of the arrays that they name, so your arrays do not change. Arrays that an expression reaches in
    another way (in a list, or through variables of a function) are not copied.
    """
    from blocknb.notebook import compared

    expressions = [Expression(unquoted(word), shell) for word in split_words(line)]
    if not expressions:
        raise UsageError("%blockbench takes expressions: %blockbench softmax(x) np.exp(x)")
    arrays = [array for expression in expressions for array in expression.arrays().values()]
    gpu = any(map(_on_gpu, arrays))
    candidates: dict[str, tuple[str, Callable[[], Any]]] = {}
    for i, expression in enumerate(expressions):  # the same one twice shows the noise
        again = sum(other.text == expression.text for other in expressions[:i])
        label = f"{expression.text} ({again + 1})" if again else expression.text
        candidates[label] = ("baseline", expression.on_copies())
    bench = compared.rows(candidates, gpu, device="GPU" if gpu else "CPU")
    shell.display_pub.publish(compared.BenchTable("bench", bench)._repr_mimebundle_())


def _on_gpu(array: Any) -> bool:
    return type(array).__module__.startswith("cupy") or bool(getattr(array, "is_cuda", False))


def blockdiff(line: str, shell: Any) -> None:
    """Compare kernels, versions, targets or passes: `%blockdiff softmax@1 softmax@2`, `%blockdiff softmax:parse softmax:coalesce`.

    A side is the name of a kernel (its newest version). Add `@2` to select a version, `@sm_80` to compile it for a target, and `:coalesce`
    to select the IR after that pass. Without a pass, the page shows source, IR, machine code, resources and times side by side.
    `--target sm_80` compiles each side that names no target for this one.
    """
    from blocknb.notebook import diffs, live, side_by_side
    from blocknb.notebook.blobs import Blobs

    words, target = _target_of(line.split())
    if len(words) != 2:
        raise UsageError("%blockdiff takes two sides: %blockdiff softmax@1 softmax@2")
    a, b = (diffs.side(word, shell, target) for word in words)
    if not a.stage and not b.stage:
        page = side_by_side.SideBySide([side_by_side.of_card(s.card, s.label, s.target) for s in (a, b)])
        shell.display_pub.publish({**page.bundle(), "text/plain": f"{page.text()}\n{diffs.unified(a, b)}"})
        return
    blobs = Blobs(40_000)
    part = diffs.part(a, b, blobs)
    card = replace(b.card, parts={**b.card.parts, **part, "blobs": blobs.stored}, opened=("history",))
    bundle = live.bundle(card)
    page = diffs.static_page(a, b) + bundle["text/html"]
    shell.display_pub.publish({**bundle, "text/plain": diffs.unified(a, b), "text/html": page})


def _target_of(words: Sequence[str]) -> tuple[list[str], str]:
    """The words without the option `--target`, and its value or ""; raises UsageError for another option and for several targets."""
    joined = [part for word in words for part in (word.split("=", 1) if word.startswith("--target=") else [word])]
    option = next((word for word in joined if word.startswith("-")), None)
    if option is None:
        return joined, ""
    at = joined.index(option)
    value = joined[at + 1] if at + 1 < len(joined) else ""
    if option != "--target" or not value or "," in value:
        raise UsageError(
            "%blockdiff has one option, --target with one target; to compare targets, write them at the sides: "
            "%blockdiff softmax@sm_80 softmax@sm_90a"
        )
    return [*joined[:at], *joined[at + 2 :]], value


def _kernels(word: str, shell: Any) -> list[str]:
    """The completions of a word: names of kernels, versions after `@`, passes after `:`."""
    from blocknb.notebook import diffs, history

    head, colon, _ = word.partition(":")
    name = head.partition("@")[0]
    if colon or "@" in word:
        try:
            kernel = diffs.kernel_of(name, shell)
        except UsageError:
            return []
        if not colon:
            return [c for v in history.versions(kernel) if (c := f"{name}@{v.number}").startswith(word)]
        stages = [stage.name for stage in kernel.latest.trace.stages] if kernel.latest else []
        return [c for stage in stages if (c := f"{head}:{stage}").startswith(word)]
    from blocknb.runtime.interface import KernelInterface

    return sorted(n for n, v in shell.user_ns.items() if isinstance(v, KernelInterface) and n.startswith(word))


def roofline(line: str, shell: Any) -> None:
    """Compare kernels with the limits of their device: `%roofline softmax`, `%roofline matmul --baseline cupy.matmul(a, b)`.

    Name kernels that %%blockkernel cells have launched. Their last launches are timed again with cold caches, on copies of the arrays that
    they write. A baseline is an expression that does the work of the first kernel; it runs on copies of the arrays that it names. The
    ceilings of a device are measured once, which takes some seconds, and then stored.
    """
    from blocknb.notebook.roofline_line import show

    show(line, shell)


def _nothing(word: str, shell: Any) -> list[str]:
    return []


LINES: dict[str, LineMagic] = {
    "blockview": LineMagic(blockview, _kernels),
    "blockbench": LineMagic(blockbench, _nothing),
    "blockdiff": LineMagic(blockdiff, _kernels),
    "roofline": LineMagic(roofline, _kernels),
    **{name: LineMagic(*functions) for name, functions in course.LINES.items()},
}


def register(shell: Any) -> None:
    """Registers the line magics with a shell."""
    for name, magic in LINES.items():
        shell.register_magic_function(_bound(magic, shell), "line", name)


def _bound(magic: LineMagic, shell: Any) -> Callable[[str], None]:
    def run(line: str) -> None:
        magic.run(line, shell)

    run.__doc__, run.__name__ = magic.run.__doc__, magic.run.__name__
    return run
