"""One-liners of a graph, saved and in memory: what they find is what the graph shows."""

import torch

import interbasis
from interbasis.analysis.stages.features import FeaturesResult
from interbasis.analysis.stored_results import load_result
from interbasis.graph.companions import companion
from interbasis.show.viewer.payload import graph_payload, page_trace


def small_graph() -> interbasis.InteractionGraph:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    inputs = torch.randn(80, 6)
    return interbasis.build(interbasis.from_torch(model), (inputs, model(inputs).argmax(1)))


def test_a_graph_in_memory_shows_its_labels_ablation_and_traces(tmp_path):
    graph = small_graph()
    before = graph_payload(graph)
    assert not before.labelled
    labels = graph.label(top=4)
    ablation = graph.ablate(stable=False)
    trace = graph.trace(sample=3, checks=2)
    page = graph_payload(graph)
    assert page.labelled
    assert [one.label for one in page.layers[1].features] == [
        one.label for one in labels.layers[page.layers[1].name].features
    ]
    counts = [section.edges_required.count for section in page.sections]
    assert counts == [section.count for section in ablation.sections.values()]
    assert page.traces == (page_trace("sample-3", trace),)
    text = graph.to_html(tmp_path / "graph.html").read_text(encoding="utf-8")
    assert '"labelled":true' in text
    assert "srcdoc" in graph._repr_html_()


def test_results_of_a_saved_graph_are_in_its_run(tmp_path):
    graph = small_graph()
    graph.save(tmp_path / "run")
    graph.label(top=3)
    assert load_result(tmp_path / "run", FeaturesResult) is not None
    assert not companion(graph).results
    assert graph_payload(graph).labelled
    assert graph_payload(interbasis.load(tmp_path / "run")).labelled
    assert graph_payload(graph).name == "run"


def test_what_is_kept_goes_with_the_graph():
    graph = small_graph()
    kept = companion(graph)
    assert kept.network is not None
    assert companion(graph) is kept
    assert companion(small_graph()) is not kept
