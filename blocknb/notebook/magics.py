"""`%%blockkernel`: a cell whose launches are observed, and shown as one card per kernel below the cell's own output.

The body must behave like any cell: last expression, `%` and `!` lines, top-level await, `_`, line numbers. So the shell runs it as an
ordinary cell. An input transformer replaces the first line by a statement that starts an Observation, and leaves every other line in
place. An AST transformer makes imports of Triton import blocknb. The shell's event at the end of the cell stops the Observation and shows
the cards, even after an error. `import blocknb` in IPython runs this module, so it loads the compiler and the card only when the first
cell needs them. The magic runs the body itself only if code calls `%%blockkernel` (`run_cell_magic`, exported scripts). Options that
measure or check have modules of their own (see `options`), and so have the line magics (`lines`); `register` installs everything.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections import Counter
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError
from IPython.core.magic import Magics, line_cell_magic, magics_class, no_var_expand
from IPython.core.magic_arguments import argument, magic_arguments, parse_argstring
from traitlets import Bool

from blocknb.errors import CompilationInterrupted, KernelError
from blocknb.language.check_modes import NAMES, parse_checks
from blocknb.notebook import completion, concurrent_compile, errors
from blocknb.notebook.expressions import Expression
from blocknb.notebook.options import Found, Once, finish, split_words, unquoted, with_options
from blocknb.notebook.options import options as all_options
from blocknb.notebook.teaching.options import with_views

if TYPE_CHECKING:
    from blocknb.notebook.memory import CellMemory
    from blocknb.notebook.observe import Observation
    from blocknb.runtime.kernel import Kernel


@dataclass(eq=False)
class CellSession:
    """A running `%%blockkernel` cell: its options, its launches, and the kernels that existed before it.

    `more` holds the values of options that have a module, by key. `interpreted` counts interpreted launches by kernel; closing
    `interpreting` ends interpretation. `messages` are what options display without a card.
    """

    target: str | None
    launch: str
    show: tuple[str, ...]
    quiet: bool
    checked: bool | str
    more: dict[str, Any]
    cell: Any
    before: frozenset[int]
    observation: Observation
    memory: CellMemory
    views: concurrent_compile.Views
    interpreting: ExitStack
    interpreted: Counter[str]
    messages: list[dict[str, Any]] = field(default_factory=list)


def start_line(lines: list[str]) -> list[str]:
    """The input transformer: `%%blockkernel options` on the first line becomes a call that starts the observation."""
    options = options_of(lines[0]) if lines else None
    return lines if options is None else [f"get_ipython().run_line_magic('blockkernel', {options!r})\n", *lines[1:]]


def options_of(first: str) -> str | None:
    """The options in the first line of a `%%blockkernel` cell; None for the first line of another cell, or a request for help."""
    found = re.match(r"%%blockkernel(?![\w?])[ \t]*(.*?)\s*$", first)
    return None if found is None or found[1].endswith("?") else found[1]


class TritonImports(ast.NodeTransformer):
    """The AST transformer: makes imports of Triton import blocknb in a `%%blockkernel` cell, which it recognizes by the first statement."""

    def visit(self, tree: ast.AST) -> ast.AST:
        match tree:
            case ast.Module(
                [ast.Expr(ast.Call(ast.Attribute(attr="run_line_magic"), [ast.Constant("blockkernel"), _])), *_]
            ):
                return _without_triton(tree)
        return tree


def _without_triton(tree: Any) -> Any:
    from blocknb.compat import rewrite

    return rewrite(tree)


@magics_class
class BlockMagics(Magics):
    """The magic and its shell events. `cells` are the running cells and `sessions` their observations, the innermost last.

    A cell can run another one (`%run -i`, `%%capture`).
    """

    shell: Any  # IPython allows None; here there is always a shell
    learn = Bool(False, help="Whether cards begin with the views for learners, as with --learn.").tag(config=True)

    def __init__(self, shell: Any):
        super().__init__(shell)
        self.cells: list[Any] = []
        self.sessions: list[CellSession] = []
        self.unrepeated: list[Any] = []  # cards of the last cells, whose launches were not repeated by them

    @magic_arguments("%blockkernel")
    @argument(
        "--target",
        action=Once,
        metavar="NAME",
        help="Also show the code for this target: sm_70, sm_75, sm_80, sm_86, sm_89, sm_90a, sm_100a, sm_120a... (after a run on the "
        "CPU, sm_90a is the default), or for several, as columns: sm_80,sm_90a. The option does not change where the kernel runs: the "
        "arrays decide that.",
    )
    @argument(
        "--launch",
        action=Once,
        metavar="EXPR",
        nargs="+",
        help="Evaluate this expression after the body, as the last line of the cell: "
        "--launch add[98](x, y, out, n, BLOCK=1024)",
    )
    @argument(
        "--show",
        action="extend",
        metavar="SECTION",
        nargs="+",
        default=[],
        help="Open these sections of the card: source, times, the name of a stage (parse, simplify, coalesce...), llvm, ptx, "
        "sass, assembly, or all.",
    )
    @argument(
        "--quiet",
        action="store_true",
        help="Do not show the card. A later cell can show it with the kernel's name as its last line.",
    )
    @argument(
        "--interpret",
        action="store_true",
        help="Interpret the kernels of this cell with NumPy instead of compiling them, so that print and breakpoint() work in them.",
    )
    @argument(
        "--checked",
        action=Once,
        nargs="?",
        const=True,
        default=False,
        metavar="CHECKS",
        help="Launch with checked=True: the kernel skips an out-of-bounds access, and an error reports its line, program and element. "
        "--checked race also finds races between programs. --checked init finds loads of elements that nothing has written, and "
        "--checked all does both.",
    )
    @argument(
        "--memory",
        action="store_true",
        help="Open the card at Memory: CuPy's pools, copies between host and GPU, and arrays that outlive the cell. On the CPU, also "
        "measure the peak of NumPy's arrays, which makes Python code slower.",
    )
    @with_options
    @no_var_expand
    @line_cell_magic
    def blockkernel(self, line: str = "", cell: str | None = None) -> None:
        """Run a cell and show how the kernels launched in it were compiled and how fast they were.

        The body is plain Python and behaves like any cell. Define a kernel in it, launch it, or both:

            %%blockkernel --target sm_80 --show ptx
            @blocknb.kernel
            def double(x, out, BLOCK: tl.constexpr):
                i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
                tl.store(out + i, 2 * tl.load(x + i))

            double[len(x) // 64](x, out, BLOCK=64)

        Below the cell's own output appears one card for each launched kernel. It shows the time, the resources, the compiler's
        notes, and every stage of the compilation from the source to machine code. Kernels run on the device of their arrays. The
        card shows code for a GPU even on a machine without one. A kernel's name as the last line of a cell shows its card.
        """
        if cell is not None:
            return self._run_here(line, cell)
        self._begin(line, self.cells[-1] if self.cells else None)
        return None

    # ---- the life of an observation ----

    def _begin(self, line: str, cell: Any) -> CellSession:
        from blocknb.notebook.memory import CellMemory
        from blocknb.notebook.observe import Observation
        from blocknb.runtime import interrupts, launch_context
        from blocknb.runtime.launch_context import interpreted

        try:
            split_words(line)
            options = parse_argstring(self.blockkernel, line)
        except UsageError as error:
            raise UsageError(f"{error}; {_did_you_mean(str(error), line)}see %%blockkernel? for the options") from None
        for target in (options.target or "").split(",") if options.target is not None else ():
            _check_target(target)
        try:
            parse_checks(options.checked)
        except ValueError:
            raise UsageError(f"--checked: {options.checked!r} is none of {', '.join(NAMES)}") from None
        show = tuple(name for word in options.show for name in word.split(",") if name)
        if unknown := [name for name in show if name not in completion.section_names()]:
            raise UsageError(
                f"--show: there is no section {unknown[0]!r}; the sections are: {', '.join(completion.section_names())}"
            )
        if options.memory and "memory" not in show:
            show = ("memory", *show)
        launch = unquoted(options.launch or [])
        if launch:
            Expression(launch, self.shell)  # a syntax error stops the cell before its body
        more = {o.key: o.prepare(getattr(options, o.key), self.shell) for o in all_options()}
        before = frozenset(map(id, self._kernels()))
        with ExitStack() as entered:  # if one of them fails, those before it end
            entered.enter_context(interrupts.redelivered())
            for value in more.values():
                if isinstance(value, AbstractContextManager):  # an option that surrounds the cell
                    entered.enter_context(value)
            counted = entered.enter_context(interpreted(options.interpret))
            stack = entered.pop_all()
        session = CellSession(
            target=options.target,
            launch=launch,
            show=show,
            quiet=options.quiet,
            checked=options.checked,
            more=more,
            cell=cell,
            before=before,
            observation=Observation(copies=more.get("check") is not None),
            memory=CellMemory(self.shell.user_ns, options.memory),
            views=concurrent_compile.Views(options.target),
            interpreting=stack,
            interpreted=counted,
        )
        self.sessions.append(session)
        self._enforce()
        errors.adopt_cuda(self.shell)
        session.observation.start()
        session.memory.start()
        launch_context.companions.append(session.views)
        return session

    def _stop(self, session: CellSession) -> None:
        """Ends an observation. An option that surrounds the cell may fail, such as one with a cluster that is gone; all else ends first."""
        from blocknb.runtime import launch_context

        with session.interpreting as ending:  # its callbacks run last in, first out
            ending.callback(session.observation.stop)
            ending.callback(session.memory.stop)
            launch_context.companions.remove(session.views)
            self.sessions.remove(session)
            self._enforce()

    def _enforce(self) -> None:
        """Turns on checked launches while a running cell requests them."""
        from blocknb.runtime.launch_context import enforced

        enforced.clear()
        if wanted := [session.checked for session in self.sessions if session.checked]:
            enforced["checked"] = wanted[-1]

    def pre_run_cell(self, info: Any) -> None:
        self._repeat()
        self.cells.append(info)
        errors.adopt_cuda(self.shell)

    def _repeat(self) -> None:
        """Repeats the launches of the last cell, before the next one may reassign their arrays. If the next cell does not run at once, the
        page asks for the repetition earlier. It does not run within the cell, where the launches would take the cores with which the page
        paints the card."""
        while self.unrepeated:
            from blocknb.notebook import live  # a cell has loaded it

            live.repeat(self.unrepeated.pop())

    def post_run_cell(self, result: Any) -> None:
        # A cancelled cell has no result; it was the innermost one.
        info = getattr(result, "info", None) or (self.cells[-1] if self.cells else None)
        while self.cells and self.cells.pop() is not info:
            pass
        for session in [
            s for s in self.sessions if s.cell is info or (s.cell is not None and s.cell not in self.cells)
        ]:
            succeeded = result is not None and result.success
            if session.launch and succeeded:
                succeeded = self._launch(session.launch, result)
            if succeeded:
                succeeded = self._run_options(session, getattr(info, "raw_cell", ""), result)
            error = getattr(result, "error_in_exec", None)
            try:
                try:
                    self._stop(session)
                finally:
                    self._show(session, failed=not succeeded, error=error)
            except BaseException as error:  # of an option: it becomes the cell's own error, so that Run All stops
                if result is None:
                    raise
                result.error_in_exec = result.error_in_exec or error
                self.shell.showtraceback()

    def _launch(self, expression: str, result: Any) -> bool:
        """Evaluates `--launch`; an exception becomes the cell's own error, so that Run All stops."""
        from blocknb.notebook.expressions import Expression

        try:
            self.shell.user_ns["_"] = Expression(expression, self.shell, "--launch")()
        except BaseException as error:
            result.error_in_exec = error
            self.shell.showtraceback()
            return False
        return True

    def _run_options(self, session: CellSession, cell: str, result: Any = None) -> bool:
        """Runs what options do after the body. Without a `result`, raises their exceptions."""
        try:
            for option in all_options():
                value = session.more.get(option.key)
                if option.run is not None and value is not None and (said := option.run(value, self.shell, cell)):
                    session.messages.append(said)
        except BaseException as error:
            if result is None:
                raise
            result.error_in_exec = error
            self.shell.showtraceback()
            return False
        return True

    def _show(self, session: CellSession, failed: bool, error: BaseException | None = None) -> None:
        from blocknb.notebook import card, failed_compile, history, html, live, verdicts

        if isinstance(error, KernelError | CompilationInterrupted) and not session.quiet:
            trace = failed_compile.stages_of(error)
            if trace is not None:
                self._display(failed_compile.bundle(error, trace))
        records = list(session.observation.records.values())
        error = None  # from here on, of an option
        for record in records:
            found = Found()
            if not failed and error is None:
                try:
                    found = finish(session.more, record, self.shell, session.launch)
                except BaseException as raised:
                    error = raised  # after the cards, which show the completed launches
            made = card.card_of(record, session.target, session.show)
            record.drop_copies()
            if found.ok is None and (known := history.verdict(made)) is not None:
                found.facts.insert(0, known)
            found.parts["memory"] = part = session.memory.part(made.main.compiled.trace, self.shell)
            found.facts += session.memory.facts(part)
            made = replace(made, more_facts=tuple(found.facts), parts=found.parts)
            if not failed:
                made = with_views(made, session.more, self.learn or session.more.get("exercise") is not None)
            history.record(made, found.ok, found.checked)
            if not session.quiet:
                self._display(live.bundle(made))
                self.unrepeated.append(made)
            elif verdicts.VERDICT in made.parts:
                self._display(verdicts.bundle(made.parts[verdicts.VERDICT]))
            history.save(made)
        if error is not None:
            raise error
        for said in session.messages:
            self._display(said)
        if not records and not failed and not session.quiet and not session.messages:
            text = self._nothing_launched(session)
            self._display({"text/plain": text.replace("`", ""), "text/html": html.message(text)})

    def _display(self, bundle: dict[str, Any]) -> None:
        self.shell.display_pub.publish(bundle)

    def _nothing_launched(self, session: CellSession) -> str:
        from blocknb.notebook.card import example

        if session.interpreted:
            parts = (f"`{name}`" + f" ({n} launches)" * (n > 1) for name, n in session.interpreted.items())
            return f"Interpreted {', '.join(parts)}: no kernel was compiled."
        defined = [k for k in self._kernels() if id(k) not in session.before]
        if not defined:
            return "No kernel was launched in this cell."
        names = " and ".join(f"`{kernel.__name__}`" for kernel in defined)
        return f"Defined {names} without a launch. To launch: `{example(defined[-1])}`, where grid is the number of programs."

    def _kernels(self) -> list[Kernel]:
        from blocknb.runtime.interface import KernelInterface
        from blocknb.runtime.kernel import Kernel

        found = {}
        for value in list(self.shell.user_ns.values()):
            # Unwraps autotuners and heuristics.
            while isinstance(value, KernelInterface) and not isinstance(value, Kernel):
                value = vars(value).get("fn")
            if isinstance(value, Kernel):
                found[id(value)] = value
        return list(found.values())

    # ---- called from code ----

    def _run_here(self, line: str, cell: str) -> None:
        session, failed = self._begin(line, None), True
        try:
            self._execute(cell)
            if session.launch:
                self._execute(session.launch)
            self._run_options(session, f"%%blockkernel {line}\n{cell}")
            failed = False
        finally:
            self._stop(session)
            self._show(session, failed)

    def _execute(self, cell: str) -> None:
        """Runs the body as a cell in the user's namespace; line numbers count from the magic's own line."""
        shell, source = self.shell, "\n" + self.shell.transform_cell(cell)
        name = shell.compile.cache(source, shell.execution_count, raw_code=source)
        body = _without_triton(shell.transform_ast(shell.compile.ast_parse(source, name))).body
        last = [body.pop()] if body and isinstance(body[-1], ast.Expr) else []
        flags = shell.compile.flags | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        parts = [compile(ast.Module(body, []), name, "exec", flags, True)]
        if last:
            parts.append(compile(ast.Interactive(last), name, "single", flags, True))
        for code in parts:
            if code.co_flags & inspect.CO_COROUTINE:
                raise UsageError("await works only if %%blockkernel is the first line of the cell")
            exec(code, shell.user_global_ns, shell.user_ns)


def _did_you_mean(message: str, line: str) -> str:
    """What a word that is no option was meant to be: a misspelled option, or a part of an expression that looks like one."""
    found = re.match(r"unrecognized arguments: (-\S+)", message)
    if found is None:
        return ""
    import difflib

    if not found[1].startswith("--"):
        return f"write quotes around an expression with a word that begins with `-` ({found[1]} in line 1); "
    known = re.findall(r"--[a-z]+", " ".join(BlockMagics.blockkernel.parser._option_string_actions))
    close = difflib.get_close_matches(found[1], known, 1, cutoff=0.75)
    return f"did you mean {close[0]}?; " if close else ""


def _check_target(name: str) -> None:
    from blocknb.target import Target

    try:
        Target.parse(name)
    except KernelError as error:
        raise UsageError(f"{error.message}; {error.hint}") from None
