"""Two texts of other engines on the page: the verdict in words, and a sentence beside the field that is wrong."""

import pytest
from on_page import assert_no_sideways_scrolling, violations
from playwright.sync_api import expect

from specviz.records.errors import SpecvizError
from specviz.ui.lossless_tab import check_texts


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"one": ""}, "one"),
        ({"other": ""}, "other"),
        ({"other": "word " * 200}, "other"),
        ({"one": "a \ud800"}, "one"),
        ({"prompt": "a \ud800"}, "prompt"),
        ({"one": "word", "other": "other"}, "prompt"),
        ({"prompt": "word", "chat": True}, "chat"),
    ],
)
def test_a_mistake_is_told_beside_its_control(pair, given, field):
    texts = {"one": "word a word", "other": "word a other", "prompt": "", "chat": False}
    check_texts(pair, **texts, most=100)
    with pytest.raises(SpecvizError) as caught:
        check_texts(pair, **texts | given, most=100)
    assert caught.value.field == field


def test_two_texts_are_judged_by_the_loaded_target_without_anything_being_warmed_up(page):
    page.get_by_role("tab", name="Lossless?").click()
    button, verdict = page.locator("#compare-texts"), page.locator("#texts-verdict")
    expect(button).to_be_hidden()
    page.locator("[aria-controls=two-texts]").click()
    button.click()
    expect(page.locator("#two-texts").get_by_text("Paste a text here.")).to_be_visible()
    one, other = page.get_by_label("Text of engine A"), page.get_by_label("Text of engine B")
    one.fill(" there lived a king who had a son")
    other.fill(" there lived a king who had a <b>zebra</b>")
    page.get_by_label("The prompt that both follow").fill("Once upon a time")
    button.click()
    expect(verdict).to_contain_text("Not a near-tie: B did not follow this target's most likely token")
    expect(verdict).to_contain_text("A continues with ' son', the target’s best token.")
    other.fill(" there lived a king who had a son")
    button.click()
    expect(verdict).to_have_text("The texts are the same, token by token.")
    assert violations(page) == []
    page.set_viewport_size({"width": 390, "height": 844})
    assert_no_sideways_scrolling(page)
