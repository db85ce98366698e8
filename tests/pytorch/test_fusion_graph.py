"""The graph of a fusion: operators, kernels, external calls, reasons and breaks, also from Inductor's cache; and its page."""

from __future__ import annotations

import json

import pytest
import torch
import torch.nn.functional as F
from IPython.core.interactiveshell import InteractiveShell

import blocknb.torch
from blocknb.notebook import document, extension, live_pages, torch_page, torch_trend
from blocknb.torch.inductor import fusion_graph, graphs
from blocknb.torch.inductor.eager_operators import eager_operators

ROWS, COLUMNS = 40, 96


def step(x, w):
    y = F.gelu(x * 1.5)
    z = (y @ w).softmax(-1)
    return z.sum(0), z + 1


def inputs():
    return torch.randn(ROWS, COLUMNS), torch.randn(COLUMNS, COLUMNS)


@pytest.fixture(scope="module")
def found():
    torch.manual_seed(0)
    return blocknb.torch.kernels(torch.compile(step, backend=blocknb.torch.backend), *inputs(), eager=step)


@pytest.fixture(scope="module")
def part(found):
    return torch_page.torch_part(found)


def operators_of(graph, group):
    return [graph.operators[i].operator for i in group.operators]


def test_each_operator_is_in_the_group_that_runs_it(found):
    (file,) = found.graphs
    graph = file.graph
    assert graph.name == "inference"
    kernels = [group for group in graph.groups if group.kind == fusion_graph.KERNEL]
    (product,) = [group for group in graph.groups if group.kind == fusion_graph.EXTERNAL]
    assert {group.call for group in kernels} == {k.name for k in found}
    assert operators_of(graph, product) == ["aten.mm"]
    gelu = next(group for group in kernels if "aten.erf" in operators_of(graph, group))
    assert {graph.operators[i].original for i in gelu.operators} == {"aten.mul", "aten.gelu"}
    (mm,) = (graph.operators[i] for i in product.operators)
    assert mm.result == f"float32[{ROWS}, {COLUMNS}]"
    assert mm.line[2] == "z = (y @ w).softmax(-1)"
    sizes = (ROWS + COLUMNS + ROWS) * COLUMNS * 4
    assert graph.external_bytes() == sizes


def test_launches_know_their_group(found):
    for kernel in found:
        (site,) = kernel.sites
        assert site.file.graph.groups[site.group].call == kernel.name


def test_a_user_s_line_is_not_one_of_torch(found):
    lines = {line for kernel in found for line in kernel.lines}
    assert {file for file, _, _ in lines} == {__file__}


def test_inductor_s_reasons_are_those_between_groups_that_share_data(found):
    graph = found.graphs[0].graph
    assert graph.unfused
    for one in graph.unfused:
        assert one.first < one.second
        assert one.reason
        assert "%" not in one.reason
    softmax, total = ("aten.exp", "aten.sum")
    named = {
        frozenset(op for g in (one.first, one.second) for op in operators_of(graph, graph.groups[g]))
        for one in graph.unfused
    }
    assert any({softmax, total} <= names for names in named)


def test_a_graph_from_the_cache_has_all_of_it(found):
    file = found.graphs[0]
    with open(file.path, encoding="utf-8") as text:
        again = graphs._graph_file(text.read(), file.path)
    assert again.graph == file.graph
    assert again.groups == file.groups


def test_a_break_has_its_reason_and_the_line_of_the_program():
    def broken(x):
        y = x.exp() + 1
        torch._dynamo.graph_break()
        return y.sin() * 2

    found = blocknb.torch.kernels(torch.compile(broken, backend=blocknb.torch.backend), torch.ones(33))
    first, second = found.graphs
    assert first.graph_break.line[0] == __file__
    assert first.graph_break.line[2] == "torch._dynamo.graph_break()"
    assert "graph_break" in first.graph_break.reason
    assert second.graph_break is None
    (shown,) = torch_page.torch_part(found)["breaks"]
    assert shown["graph"] == 0
    assert "torch._dynamo.graph_break" in found._repr_html_()


def test_equal_kernels_of_one_graph_have_groups_of_their_own():
    def twice(x, w):
        return ((x.exp() + 1) @ w).exp() + 1

    found = blocknb.torch.kernels(
        torch.compile(twice, backend=blocknb.torch.backend), torch.ones(16, 16), torch.eye(16)
    )
    first, second = found
    assert first.sites[0].group != second.sites[0].group


def test_equal_kernels_of_two_graphs_have_the_lines_of_their_launches():
    def broken(x):
        y = x.exp() + 3
        torch._dynamo.graph_break()
        z = y.exp() + 3
        return z, z @ z

    found = blocknb.torch.kernels(torch.compile(broken, backend=blocknb.torch.backend), torch.ones(9, 9))
    assert [[text for _, _, text in kernel.lines] for kernel in found] == [["y = x.exp() + 3"], ["z = y.exp() + 3"]]
    assert [site.file for kernel in found for site in kernel.sites] == list(found.graphs)


def test_eager_operators_are_counted_without_views():
    x = torch.ones(8, 4)
    counted = eager_operators(lambda: (x.t().exp() + x.view(4, 8)).sum())
    assert counted.counts == {"aten.exp": 1, "aten.add": 1, "aten.sum": 1}
    assert counted.launches == 3
    assert counted.bytes == (2 + 3) * 128 + 128 + 4


def test_the_page_compares_the_step_with_eager(found):
    (page,) = [torch_page.TorchPage(found).document(1 << 30)]
    labels = {label: (value, details) for label, value, details in page["headline"]}
    assert set(labels) == {"compiled step", "eager step", "sum of the kernels"}
    assert f"{len(found) + 1} launches" in labels["compiled step"][1][0]
    assert "1 × aten.mm" in labels["eager step"][1][1]
    assert "read and written" in labels["eager step"][1][2]


def test_boxes_do_not_overlap_and_hold_their_operators(part):
    for graph in part["graphs"]:
        boxes = [group["box"] for group in graph["groups"]]
        for i, (x, y, w, h) in enumerate(boxes):
            assert 0 <= x and x + w <= graph["width"] + 1 and 0 <= y and y + h <= graph["height"] + 1
            for other_x, other_y, other_w, other_h in boxes[:i]:
                assert x + w <= other_x + 1 or other_x + other_w <= x + 1 or y + h <= other_y or other_y + other_h <= y
        for box, _, _, x, y, width in graph["nodes"]:
            left, top, w, h = boxes[box]
            assert left <= x and x + width <= left + w + 1 and top <= y and y + 20 <= top + h + 1


def test_edges_go_from_the_product_to_the_softmax(part):
    (graph,) = part["graphs"]
    joined = {
        (graph["nodes"][a][0], graph["nodes"][b][0])
        for a, b, _ in graph["edges"]
        if graph["nodes"][a][0] != graph["nodes"][b][0]
    }
    kinds = [group["kind"] for group in graph["groups"]]
    product = kinds.index("external")
    assert any(b == product for _, b in joined)
    assert any(a == product for a, _ in joined)


def test_a_live_page_answers_with_the_card_of_a_row(found):
    bundle = torch_page.torch_kernels_bundle(found)
    page = live_pages.page(bundle[document.MIME]["model"])
    card = page.requests["card"](page, {"row": 0})["document"]
    assert card["kernel"] == found[0].compiled.kernel.__name__
    assert [view.get("target") for view in card["views"]][-1] == "sm_90a"
    name = next(iter(card["views"][0]["code"].values()))
    listing = page.requests["of_card"](page, {"row": 0, "ask": {"what": "blob", "hash": name}})["listing"]
    assert listing["text"]
    assert "cannot be repeated" in page.requests["of_card"](page, {"row": 0, "ask": {"what": "measure"}})["error"]


def test_a_page_without_a_kernel_has_cards_within_its_limit(found, monkeypatch):
    monkeypatch.setattr(extension, "answers", [])
    bundle = torch_page.torch_kernels_bundle(found)
    cards = bundle[document.MIME]["torch"]["cards"]
    assert set(map(int, cards)) == set(range(len(found)))
    assert len(json.dumps(bundle, ensure_ascii=False).encode()) <= torch_page.LIMIT
    monkeypatch.setattr(torch_page, "GRAPHS_LIMIT", 100)
    (graph,) = torch_page.torch_part(found)["graphs"]
    assert graph["width"] == 0


def test_the_static_page_has_the_graph_and_the_reasons(found):
    page = found._repr_html_()
    assert page.count("<svg") == 1
    assert "mm (external)" in page
    assert "Why there are no fewer kernels" in page


def test_a_cell_that_runs_again_adds_a_point_to_its_trend(monkeypatch):
    monkeypatch.setattr(torch_trend, "_runs", {})
    shell = InteractiveShell(colors="nocolor")
    blocknb.load_ipython_extension(shell)
    shown = []
    shell.display_pub.publish = lambda data, *_, **__: shown.append(data)
    shell.user_ns |= {"f": torch.compile(lambda x: x.exp() * 5, backend=blocknb.torch.backend), "x": torch.ones(64)}
    for text in ("f(x)", "f(x)", "f(x)\nf(x)"):
        shell.run_cell(f"%%torchkernels\n{text}", cell_id="one").raise_error()
    shell.run_cell("%%torchkernels\nf(x)", cell_id="two").raise_error()
    trends = [data[document.MIME]["torch"]["trend"] for data in shown]
    assert [len(trend) for trend in trends] == [1, 2, 3, 1]
    last = trends[2]
    assert [run["change"] for run in last] == ["", "same text", "+1 −0 lines"]
    assert [run["launches"] for run in last] == [1, 1, 2]
    assert all(run["bytes"] == run["launches"] * 512 and run["time"]["median"] > 0 for run in last)


def test_a_trend_continues_after_the_session_of_its_notebook(found, monkeypatch, tmp_path):
    monkeypatch.setenv("BLOCKNB_HISTORY", str(tmp_path))
    monkeypatch.setattr(torch_trend.history_file, "notebook", lambda: str(tmp_path / "a.ipynb"))
    monkeypatch.setattr(torch_trend, "_runs", {})
    torch_trend.add("cell", "f(x)", found)
    monkeypatch.setattr(torch_trend, "_runs", {})
    monkeypatch.setattr(torch_trend, "_texts", {})
    first, second = torch_trend.add("cell", "f(x)", found)
    assert {**first, "when": ""} == {**second, "when": ""}
