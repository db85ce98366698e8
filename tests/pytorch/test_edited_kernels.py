"""A generated kernel opened as a cell, changed, and put in place of the generated one, after a check against it."""

from __future__ import annotations

import itertools
import linecache

import pytest
import torch
import torch.nn.functional as F
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

import blocknb
import blocknb.torch
from blocknb.errors import AccessError, CompilationError, LaunchError
from blocknb.runtime.kernel import Kernel
from blocknb.torch.inductor import edited

pytestmark = pytest.mark.own_count
_numbers = itertools.count()


def from_cell(text):
    """Runs the text of a cell as Python, and returns its last kernel."""
    name = f"<cell {next(_numbers)}>"
    body = text.replace("%%blockkernel", "", 1)
    linecache.cache[name] = len(body), None, body.splitlines(keepends=True), name
    space = {"__name__": "cell"}
    exec(compile(body, name, "exec"), space)
    return [value for value in space.values() if isinstance(value, Kernel)][-1]


def compiled(function, **options):
    return torch.compile(function, backend=blocknb.torch.backend, **options)


def gelu(x, w):
    return F.gelu(x * w + 1).sum(-1)


def step(f, x, w):
    w.grad = None
    f(x, w).sin().sum().backward()
    return w.grad


@pytest.fixture(scope="module")
def found():
    f, x = compiled(gelu), torch.linspace(-3, 3, 24 * 40).reshape(24, 40)
    w = torch.linspace(0.5, 1.5, 40).requires_grad_()
    kernels = blocknb.torch.kernels(step, f, x, w)
    return kernels, lambda: step(f, x, w), lambda: step(gelu, x, w)


@pytest.fixture(autouse=True)
def _restored():
    yield
    for made in blocknb.torch.replaced():
        made.restore()


def test_the_cell_of_a_kernel_runs_and_takes_its_place_forward_and_backward(found):
    kernels, run, eager = found
    assert len(kernels) >= 2
    for kernel in kernels:
        text = kernel.edit()
        assert text.startswith("%%blockkernel\n# triton_")
        assert "return F.gelu(x * w + 1).sum(-1)" in text
        assert "tmp0" not in text
        made = kernel.replace_with(from_cell(text))
        assert made in blocknb.torch.replaced()
        assert "in place of triton_" in repr(made)
    names = [k.name for k in blocknb.torch.kernels(run)]
    assert all(" in place of triton_" in name for name in names)
    torch.testing.assert_close(run(), eager())
    for kernel in kernels:
        kernel.restore()
    assert not blocknb.torch.replaced()
    assert [k.name for k in blocknb.torch.kernels(run)] == [k.name for k in kernels]


@pytest.mark.full
def test_every_launch_uses_the_replacement_and_restore_ends_it(found, monkeypatch):
    kernels, run, eager = found
    text = kernels[0].edit()
    monkeypatch.setattr(edited, "_check_results", lambda *_: None)  # so that the other result shows which kernel ran
    made = blocknb.torch.replace_kernel(
        text.split('replace_kernel("')[1][:12], from_cell(text.replace("+ 1.0", "+ 5.0"))
    )
    assert not torch.allclose(run(), eager())
    torch._dynamo.reset()
    assert not torch.allclose(run(), eager())  # compiled again
    made.restore()
    torch.testing.assert_close(run(), eager())
    made.restore()


def test_other_results_are_refused_at_the_line_of_the_store(found):
    kernels, run, eager = found
    text = kernels[0].edit()
    assert "0.7071067811865476" in text
    with pytest.raises(
        LaunchError,
        match=r"(?s)on the recorded arguments: \d+ of \d+ elements of `\w+` differ.*which fuses.*"
        r"test_edited_kernels.py:\d+: return F.gelu.*at <cell \d+>, line \d+.*tl.store",
    ):
        kernels[0].replace_with(from_cell(text.replace("0.7071067811865476", "0.71")))
    assert not blocknb.torch.replaced()
    torch.testing.assert_close(run(), eager())


@pytest.mark.full
def test_a_missing_store_is_refused(found):
    kernels, _, _ = found
    text = kernels[0].edit()
    half = text.replace("tl.store(", "xmask = xmask & (xindex < 11)\n    tl.store(", 1)
    with pytest.raises(LaunchError, match="13 of 24 elements"):
        kernels[0].replace_with(from_cell(half))


def test_faults_of_an_edited_kernel_name_the_line_of_the_cell(found):
    kernels, _, _ = found
    text = kernels[0].edit()
    origin = (
        r"(?s)in the kernel \w+ in place of triton_\w+, which fuses aten.mul.*return F.gelu.*at <cell \d+>, line \d+"
    )
    with pytest.raises(CompilationError, match=origin + ".*libdevice.eerf"):
        kernels[0].replace_with(from_cell(text.replace("libdevice.erf", "libdevice.eerf")))
    with pytest.raises(AccessError, match=origin + r".*tl.load\(in_ptr0 \+ \(4000"):
        kernels[0].replace_with(from_cell(text.replace("tl.load(in_ptr0 + (", "tl.load(in_ptr0 + (4000 + ")))
    assert not blocknb.torch.replaced()


@pytest.mark.full
def test_other_parameters_are_refused(found):
    kernels, _, _ = found
    text = kernels[0].edit()
    for change, message in (
        (("in_ptr0", "x_ptr"), "has the parameters x_ptr, .*generated kernel has in_ptr0"),
        (("XBLOCK: tl.constexpr=", "ROWS: tl.constexpr, XBLOCK: tl.constexpr="), "the constant `ROWS`.* has no value"),
    ):
        with pytest.raises(LaunchError, match=message):
            kernels[0].replace_with(from_cell(text.replace(*change)))
    with pytest.raises(LaunchError, match="has no constant `ROWS`"):
        kernels[0].replace_with(from_cell(text), ROWS=3)
    with pytest.raises(LaunchError, match="not an object of type function"):
        kernels[0].replace_with(lambda: None)
    with pytest.raises(LaunchError, match="was not launched in a record"):
        next(k for k in blocknb.torch.kernels() if k.name == kernels[0].name).replace_with(from_cell(text))
    with pytest.raises(LaunchError, match="no generated kernel with the key 'abc'"):
        blocknb.torch.replace_kernel("abc", from_cell(text))


@pytest.mark.full
def test_a_kernel_may_have_its_own_block_and_grid():
    f, x = compiled(lambda x: x.exp() * 2), torch.linspace(-1, 1, 1000)
    (kernel,) = blocknb.torch.kernels(f, x)
    text = kernel.edit()
    assert "XBLOCK: tl.constexpr=" in text
    kernel.replace_with(from_cell(text), XBLOCK=64)
    (other,) = blocknb.torch.kernels(f, x)
    assert other.launch.grid == (16, 1, 1)
    kernel.replace_with(from_cell(text), XBLOCK=32, grid=lambda meta: (-(meta["xnumel"] // -meta["XBLOCK"]) + 7,))
    (other,) = blocknb.torch.kernels(f, x)
    assert other.launch.grid == (39, 1, 1)
    torch.testing.assert_close(f(x), x.exp() * 2)
    with pytest.raises(LaunchError, match="elements of `out_ptr0` differ"):
        other.replace_with(from_cell(text), XBLOCK=32, grid=lambda meta: (3,))
    (again,) = blocknb.torch.kernels(f, x)  # a refused kernel changes nothing
    assert again.launch.grid == (39, 1, 1)
    assert other.edit() == text
    other.restore()
    assert blocknb.torch.kernels(f, x)[0].name == kernel.name


@pytest.mark.full
def test_a_replacement_serves_all_sizes_of_a_dynamic_shape():
    f = compiled(lambda x: x.sin() + 3, dynamic=True)
    (kernel,) = blocknb.torch.kernels(f, torch.ones(100))
    kernel.replace_with(from_cell(kernel.edit()))
    for size in (100, 77, 1024):
        x = torch.linspace(0, 1, size)
        (launched,) = blocknb.torch.kernels(f, x)
        assert " in place of " in launched.name
        torch.testing.assert_close(f(x), x.sin() + 3)


@pytest.mark.full
def test_half_precision_is_compared_with_float64():
    def f(x):
        return torch.softmax(x.float() * 3, -1).to(torch.bfloat16)

    x = torch.linspace(-2, 2, 8 * 128).reshape(8, 128).to(torch.bfloat16)
    (kernel,) = blocknb.torch.kernels(compiled(f), x)
    text = kernel.edit()
    kernel.replace_with(from_cell(text))
    with pytest.raises(LaunchError, match="differ"):
        kernel.replace_with(from_cell(text.replace("3.0", "3.1")))


@pytest.mark.full
def test_arguments_above_the_limit_are_not_kept():
    f, x = compiled(lambda x: x.cos() - 2), torch.ones(300)
    f(x)
    with blocknb.torch.recorded(keep_bytes=1000) as record:
        f(x)
    (kernel,) = record.kernels
    with pytest.raises(LaunchError, match="they have 2400 bytes, and the record keeps at most 1000.*keep_bytes="):
        kernel.replace_with(from_cell(kernel.edit()))


def test_edit_puts_a_cell_below_the_current_one_that_runs_in_the_notebook():
    shell = InteractiveShell.instance(colors="nocolor")
    try:
        blocknb.load_ipython_extension(shell)
        shell.user_ns |= {"f": compiled(lambda x: x.tanh() * 5), "x": torch.ones(64), "blocknb": blocknb}
        opened = []
        shell.set_next_input = lambda text, replace=False: opened.append(text)
        assert shell.run_cell("found = blocknb.torch.kernels(f, x); found[0].edit()").result is None
        (text,) = opened
        with capture_output():
            shell.run_cell(text).raise_error()
            line = next(line for line in text.splitlines() if "replace_kernel" in line)
            shell.run_cell("made = " + line.partition(": ")[2]).raise_error()
            shell.run_cell("y = f(x)").raise_error()
        torch.testing.assert_close(shell.user_ns["y"], torch.ones(64).tanh() * 5)
        assert shell.user_ns["made"] in blocknb.torch.replaced()
    finally:
        InteractiveShell.clear_instance()
