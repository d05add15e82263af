"""On a Space: links lead through its page on the hub, which shows the page in a frame."""

from urllib.parse import parse_qsl, urlsplit

import pytest
from elements import VIEW
from playwright.sync_api import expect

HUB = "https://huggingface.co/spaces/owner/name"


@pytest.mark.parametrize("language, path", [("en", ""), ("de", "de")])
def test_links_and_codes_lead_through_the_hub_and_back_to_the_language_they_were_made_in(
    monkeypatch, serve, pair, new_page, language, path
):
    monkeypatch.setenv("SPACE_ID", "owner/name")
    url, _ = serve(pair)
    page = new_page()
    page.goto(url + path)
    page.wait_for_function(f"() => {VIEW}?.share?.query")

    def coded(picture: str) -> str:
        return dict(parse_qsl(urlsplit(page.locator(picture).get_attribute("src")).query))["text"]

    page.locator("specviz-share .copy").click()
    run = page.locator("specviz-share .link").input_value()
    page.locator("specviz-run [part=present]").click()
    page.locator("specviz-run [part=qr-button]").click()
    expect(page.locator("specviz-run [part=qr-picture]")).to_be_visible()
    round = coded("specviz-run [part=qr-picture]")
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")
    page.locator("specviz-quiz [part=opener]").click()
    page.locator("specviz-quiz [part=teach]").click()
    lesson = page.locator("specviz-quiz a").get_attribute("href")
    assert coded("specviz-quiz [part=qr]") == lesson
    query = page.evaluate(f"() => {VIEW}.share.query")
    assert run == f"{HUB}?{query}&lang={language}" and round.startswith(f"{HUB}?{query}&round=")

    # As the hub does: the query reaches the frame's root.
    page.goto(url + lesson.removeprefix(HUB))
    expect(page.locator("html")).to_have_attribute("lang", language)
    page.wait_for_url(lambda now: urlsplit(now).path == f"/{path}")
    expect(page.locator("specviz-quiz [part=begin]")).to_be_visible()
