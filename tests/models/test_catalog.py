"""The catalogue of pairs on the Hub: what it names, and what the page says of a pair that does not fit."""

from specviz.models import catalog
from specviz.records.words import words
from specviz.ui.models_tab import catalog_label


def test_the_catalog_names_each_pair_once_and_with_the_larger_model_as_target():
    assert len({pair.name for pair in catalog.CATALOG}) == len(catalog.CATALOG)
    for pair in catalog.CATALOG:
        assert pair.target != pair.draft and pair.target_millions > 2 * pair.draft_millions


def test_a_pair_that_does_not_fit_says_what_it_needs_and_what_is_free():
    pair = next(pair for pair in catalog.CATALOG if pair.name == "Qwen3 8B + 0.6B")
    assert catalog.size_bytes(pair) == 2 * (8191 + 596) * 10**6
    sentence = catalog_label(pair, 9 * 10**9, words())
    assert sentence == "Qwen3 8B + 0.6B\nneeds about 20 GB, 9.0 GB free"
    assert catalog_label(pair, 30 * 10**9, words()) == "Qwen3 8B + 0.6B\n18 GB"
