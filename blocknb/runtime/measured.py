"""The methods of a kernel that measure launches or show them: `sweep`, `tune`, `bench`, `roofline`, `history`, `export_html`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from blocknb.runtime import notebook_methods
from blocknb.runtime.examined import ExaminedKernel


class MeasuredKernel(ExaminedKernel):
    """A base class of `Kernel`. Each result displays itself, and has `plot()`, `to_pandas()`, `to_csv(path)` and `records()`."""

    def sweep(
        self,
        axes: Mapping[str, Iterable[Any]] | None = None,
        *,
        launch: Callable[..., Any] | None = None,
        baselines: Mapping[str, Callable[..., Any]] | None = None,
        check: Callable[..., Any] | None = None,
        **more: Iterable[Any],
    ) -> Any:
        """Measures the kernel for all values of one parameter, or of two: `kernel.sweep(BLOCK=[256, 512], num_warps=[1, 2, 4])`.

        The names are constants or options; the last launch of a `%%blockkernel` cell is repeated on copies, and a point with other
        outputs is left out as wrong. With `launch`, the names are those of its parameters, and it is called for each point:

            add.sweep(n=[2**k for k in range(10, 24)], launch=lambda n: add[grid](x[:n], y[:n], out[:n], n, BLOCK=1024),
                      check=lambda n: (out[:n] == x[:n] + y[:n]).all(), baselines={"NumPy": lambda n: np.add(x[:n], y[:n])})

        Its launches write to copies; `check` is called after a real launch, and then the arrays get their contents back. All points and
        baselines are timed in turns with cold caches. `axes` holds the axes by name if a name is taken. Raises LaunchError, and returns
        the points so far after an interrupt."""
        return notebook_methods.call(
            "sweep", self, {**(axes or {}), **more}, launch=launch, baselines=baselines, check=check
        )

    def tune(
        self,
        *args: Any,
        grid: Any,
        configs: Sequence[Any],
        client: Any = None,
        restore_value: Sequence[str] = (),
        **kwargs: Any,
    ) -> Any:
        """Measures `configs`, a list of `blocknb.Config`, for the launch `kernel[grid](*args, **kwargs)`. Returns the table of the trials.

            found = add.tune(x, y, out, n, grid=grid, configs=[blocknb.Config({"BLOCK": 2**k}) for k in range(6, 14)])
            add[grid](x, y, out, n, **found.launch_kwargs())

        It measures as `@blocknb.autotune` does, and changes no later launch. `restore_value` names arrays that the kernel updates. With
        the `client` of a Dask cluster, the workers measure. A table on disk serves a later call whose numbers and texts are equal, and
        whose arrays have the same dtypes and shapes. Raises AutotunerError if no configuration can run."""
        return notebook_methods.call(
            "tune_kernel", self, args, kwargs, configs=configs, client=client, restore_value=restore_value, grid=grid
        )

    def bench(
        self, baselines: Mapping[str, Callable[[], Any]] | None = None, without: Iterable[str | Iterable[str]] = ()
    ) -> Any:
        """Measures the last launch of a `%%blockkernel` cell in turns with functions that do the same work: `kernel.bench({"NumPy": f})`.

        Each entry of `without` is an optional pass, or several, without which the kernel is compiled and measured, too. The baselines are
        called as they are. Raises LaunchError if there is no such launch, or its arrays no longer exist."""
        return notebook_methods.call("bench", self, baselines or {}, without)

    def roofline(self, baselines: Mapping[str, Callable[[], Any]] | None = None) -> Any:
        """The roofline of the last launch of a `%%blockkernel` cell, with the earlier versions of the kernel. `baselines` are functions
        that do the same work, by name. Raises LaunchError if there is no such launch."""
        return notebook_methods.call("roofline_of", self, baselines or {})

    def history(self) -> Any:
        """The versions of the kernel, with their times and verdicts, and the runs of cells, knobs and autotuners. Versions of earlier
        sessions of the notebook are included. It is empty for a kernel that no cell has launched."""
        return notebook_methods.call("history_of", self)

    def export_html(self, path: Any) -> Any:
        """Writes the newest card of the kernel to one HTML file that needs no network and no kernel; returns its path."""
        return notebook_methods.call("export_html", self, path)


def from_torch(function: Any, *example: Any) -> Any:
    """Starts a cell from an eager function of PyTorch: see `blocknb.torch.from_torch`. It is `blocknb.kernel.from_torch`."""
    return notebook_methods.call("from_torch", function, *example)
