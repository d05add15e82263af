"""The catalogue of pairs on the Hub: what it names, and what the page says of a pair that does not fit."""

import pytest

from specviz.models import catalog
from specviz.parts.formats import FORMATS
from specviz.records.words import words
from specviz.ui.tabs.models import catalog_label, published_list


def test_the_catalog_names_each_pair_once_and_with_the_larger_model_as_target():
    assert len({pair.name for pair in catalog.CATALOG}) == len(catalog.CATALOG)
    for pair in catalog.CATALOG:
        assert pair.target != pair.draft and pair.target_millions > 2 * pair.draft_millions


def test_a_pair_that_does_not_fit_says_how_much_is_missing():
    pair = next(pair for pair in catalog.CATALOG if pair.name == "Qwen3 8B + 0.6B")
    assert catalog.size_bytes(pair) == 2 * (8191 + 596) * 10**6
    sentence = catalog_label(pair, 9 * 10**9, words())
    assert sentence == "Qwen3 8B + 0.6B\nneeds 11\u00a0GB more memory"
    assert catalog_label(pair, 30 * 10**9, words()) == "Qwen3 8B + 0.6B\n18\u00a0GB to download"


#: Bytes of a part's file, or the billions of parameters that its card rounds to, as the Hub shows them.
SHOWN = {
    "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B": 850e6,
    "rasyosef/Llama-3.2-1B-Instruct-DSpark": 0.3,
    "deepseek-ai/dspark_qwen3_4b_block7": 1,
    "deepseek-ai/dspark_qwen3_8b_block7": 2,
    "z-lab/Qwen3-8B-DFlash-b16": 1,
}


@pytest.mark.parametrize("part", SHOWN)
def test_the_size_of_a_published_part_is_what_its_configuration_comes_to(part):
    entry = next(entry for entry in catalog.PUBLISHED if entry.draft == part)
    if SHOWN[part] > 1000:
        assert 2e6 * entry.draft_millions == pytest.approx(SHOWN[part], rel=0.01)
    else:
        digits = 1 if SHOWN[part] < 1 else 0
        assert round(entry.draft_millions / 1000, digits) == SHOWN[part]


def test_each_published_part_is_named_with_each_of_its_targets_once_and_those_of_the_target_in_use_come_first():
    names = [entry.name for entry in (*catalog.CATALOG, *catalog.PUBLISHED)]
    assert len(set(names)) == len(names)
    assert {form.name for form in FORMATS if form.drafter} | {"MTP"} >= {entry.method for entry in catalog.PUBLISHED}
    gated = {entry.target for entry in catalog.PUBLISHED if entry.gated}
    assert gated == {"meta-llama/Llama-3.2-1B-Instruct", "meta-llama/Llama-3.1-8B-Instruct"}
    for named in ("Qwen/Qwen3-8B", "Qwen3-8B"):
        first, *others = published_list(named, words()).splitlines()
        assert first.startswith("- **[Qwen/Qwen3-8B](") and "Qwen3-8B-DFlash-b16) (DFlash, 2.1\u00a0GB)" in first
        assert not any("**" in line for line in others)
