"""A server's own numbers on the page: exact, bounded, and honest about what nobody knows."""

import gzip
import json
import random

import pytest
from elements import element, give
from on_page import assert_no_sideways_scrolling, violations
from playwright.sync_api import Page, expect
from refusal import refused

from specviz.foreign.metrics import read_metrics
from specviz.records.words import words
from specviz.views import served_diagnosis
from specviz.views.served_messages import served_answer, served_text

VIEW = element("served")

#: Passes that drafted three tokens each.
EXACT = {"acceptance_histogram": [39, 1, 0, 3], "num_draft_tokens": 129, "num_spec_tokens": 3}
#: Nobody knows how long these drafts were.
VAGUE = {"spec_verify_ct": 4, "spec_num_correct_drafts": 3, "spec_correct_drafts_histogram": [1, 3]}

HOSTILE = "<img src=x onerror=document.title='owned'>"


def many(count: int) -> str:
    """Answers with every pass of theirs, as vLLM writes them."""
    chance = random.Random(0)
    lines = []
    for number in range(count):
        kept = [min(4, int(chance.expovariate(0.6))) for _ in range(64)]
        steps = {"num_spec_steps": 64, "per_step_accepted": kept, "per_step_drafted": [4] * 64, "num_spec_tokens": 4}
        lines.append(json.dumps({"id": f"cmpl-{number}", "metrics": {"speculative_decoding": steps}}))
    return "\n".join(lines)


def part(page: Page, name: str):
    return page.locator(f"specviz-served [part={name}]")


def figure(page: Page, name: str) -> str:
    return page.locator(f"specviz-served [data-figure={name}] dd").inner_text()


def told(text: str, chains: bool = False, language: str = "en") -> str:
    return served_answer(text, chains, words(language))


@pytest.fixture
def page(alone) -> Page:
    """The card, unfolded."""
    page = alone("served")
    page.evaluate(f"() => {VIEW}.addEventListener('specviz-ask-served', ({{ detail }}) => (window.asked = detail))")
    part(page, "fold").locator("summary").first.click()
    return page


def answered(page: Page) -> None:
    """What the element asks for comes, as from a server."""
    page.wait_for_function("() => window.asked")
    text, chains, speedups = page.evaluate("() => [window.asked.text, window.asked.chains, window.asked.speedups]")
    message = json.loads(served_answer(text, chains, words(), speedups))
    page.evaluate("message => { window.asked.answer(message); window.asked = null; }", message)


def read(page: Page, *values: object) -> None:
    part(page, "field").fill("\n".join(map(json.dumps, values)))
    part(page, "read").click()
    answered(page)


def test_a_pasted_answer_shows_what_was_counted_and_what_would_have_been_best(page):
    read(page, EXACT)
    expect(part(page, "summary")).to_have_text("vLLM: 1 request, 43 target passes that verified a draft.")
    assert [figure(page, name) for name in ("tokens", "alpha", "share")] == ["1.23", "0.20", "0.08"]
    rows = part(page, "positions").locator("rect.bar title")
    assert rows.all_text_contents() == [
        f"Position {place}: accepted in {rate}\u202f% of the {judged} passes that reached it"
        for place, rate, judged in ((1, 9, 43), (2, 75, 4), (3, 100, 3))
    ]
    # c and T(K)/T(1) are what their reader types; 1 + S(1) + … by hand.
    part(page, "cost").fill("0")
    part(page, "ratio").fill("1")
    expect(part(page, "best")).to_contain_text("γ = 3 would have been best, with 1.23×")
    part(page, "ratio").fill("1.3")
    expect(part(page, "best")).to_contain_text("no γ up to 3 would have paid off")
    part(page, "cost").fill("0.01")
    points = part(page, "speed").locator("circle title").all_text_contents()
    assert points[3] == f"γ = 3: {(1 + 10 / 43) / (3 * 0.01 + 1.3):.2f}× plain decoding"
    assert violations(page) == []


def test_what_nobody_knows_is_called_unknown_until_its_reader_vouches_for_it(page):
    read(page, VAGUE | {"spec_num_proposed_drafts": 8})
    expect(part(page, "notes")).to_contain_text("does not say how many tokens each pass drafted")
    assert figure(page, "alpha") == "not known"
    expect(part(page, "gamma")).to_be_hidden()
    expect(part(page, "positions").locator("rect.bar")).to_have_count(0)
    expect(part(page, "positions").locator("circle.dot")).to_have_count(1)
    part(page, "chains").check()
    answered(page)
    expect(part(page, "gamma")).to_be_visible()
    assert figure(page, "alpha") == "0.43"  # 3 of 4 first and 0 of 3 second positions


def test_what_cannot_be_read_is_listed_with_its_reason_and_nothing_on_the_screen_is_lost(page):
    read(page, EXACT)
    before = part(page, "found").inner_text()
    read(page, {"id": HOSTILE, "acceptance_histogram": [HOSTILE]})
    expect(part(page, "problem")).to_contain_text("Request 1: acceptance_histogram[0] must be a whole number")
    assert part(page, "found").inner_text() == before
    read(page, EXACT, EXACT | {"id": HOSTILE})
    expect(part(page, "rows")).to_contain_text("<img")
    expect(part(page, "problem")).to_be_hidden()
    # Beside the figures of the others.
    bad = [EXACT | {"num_draft_tokens": number} for number in range(200, 220)]
    read(page, *bad, {"acceptance_histogram": [HOSTILE]}, EXACT)
    expect(part(page, "summary")).to_have_text("vLLM: 1 request, 43 target passes that verified a draft.")
    left_out = part(page, "left-out")
    expect(left_out).to_be_visible()
    expect(left_out).to_contain_text("21 entries cannot be read and are left out:")
    reasons = left_out.locator("li").all_text_contents()
    assert reasons[0] == "Request 1: num_draft_tokens comes to 200, but num_spec_tokens allows at most 129."
    assert "<img" in reasons[-2] and reasons[-1] == f"and {21 - len(reasons) + 1} more"
    assert violations(page) == []
    read(page, EXACT)
    expect(left_out).to_be_hidden()
    assert page.title() != "owned" and page.locator("specviz-served img").count() == 0
    assert "7 Einträge" in words("de")("served.left_out", n=7)
    (german,) = json.loads(told("\n".join(map(json.dumps, (bad[0], EXACT))), language="de"))["reasons"]
    assert german.startswith("Anfrage 1: num_draft_tokens kommt auf 200")


SCRAPE = "\n".join(
    f'vllm:spec_decode_{name}_total{{engine="0"{place}}} {value}'
    for name, place, value in [
        *(("num_drafts", "", 43.0), ("num_draft_tokens", "", 129.0), ("num_accepted_tokens", "", 10.0)),
        *(("num_accepted_tokens_per_pos", f',position="{place}"', kept) for place, kept in enumerate((4.0, 3.0, 3.0))),
    ]
)
LLAMA = json.dumps({"id": "chatcmpl-1", "timings": {"predicted_n": 16, "draft_n": 12, "draft_n_accepted": 9}})
MEAN = "INFO SpecDecoding metrics: Mean acceptance length: {}, Per-position acceptance rate: 0.900, 0.510"


@pytest.mark.parametrize(
    ("text", "summary", "figures", "note", "dots"),
    [
        (
            *(SCRAPE, "vLLM /metrics: 1 summary of many requests, 43 target passes that verified a draft."),
            *(["1.23", "0.20", "0.08"], "vLLM counts only passes that verified a draft", 3),
        ),
        (
            *(LLAMA, "llama.cpp: 1 request. The number of target passes is not given."),
            *(["not known", "not known", "0.75"], "1 request does not say how many target passes it took", 0),
        ),
        (
            f"{MEAN.format('2.41')}\n{MEAN.format('1.51')}\n{LLAMA}",
            "llama.cpp, vLLM log: 1 request, 2 summaries of many requests. The number of target passes",
            *(["not known", "not known", "0.75"], "2 entries give tokens per pass as rounded means", 0),
        ),
    ],
)
def test_the_page_shows_what_a_format_tells_and_says_what_it_does_not(page, text, summary, figures, note, dots):
    part(page, "field").fill(text)
    part(page, "read").click()
    answered(page)
    expect(part(page, "summary")).to_contain_text(summary)
    assert [figure(page, name) for name in ("tokens", "alpha", "share")] == figures
    expect(part(page, "notes")).to_contain_text(note)
    expect(part(page, "positions").locator("circle.dot")).to_have_count(dots)
    # Of what nobody knows there is no empty chart.
    assert part(page, "positions").is_visible() == part(page, "numbers").is_visible() == bool(dots)
    assert part(page, "tokens").is_visible() == (text == SCRAPE)
    assert violations(page) == []


def test_what_may_be_wrong_stands_with_its_causes_published_figures_and_requests_at_once_beside(page):
    read(page, EXACT)
    findings = part(page, "findings")
    expect(findings).to_contain_text("Only 9\u202f% of the 43 tokens at position 1")
    expect(findings).to_contain_text("Set the number of draft tokens to the block size")
    part(page, "speedups").fill("1:1.9 4:0.74")
    part(page, "speedups").press("Enter")
    page.locator("h3").first.click()
    answered(page)
    expect(findings).to_contain_text("slower than without drafts: a round then costs 2.6 times as many plain steps")
    assert part(page, "anchors").count() == 0  # until somebody looks
    part(page, "published").locator("summary").click()
    part(page, "method").select_option("EAGLE-3")
    expect(part(page, "range")).to_contain_text("EAGLE-3: 2.26 to 5.14 in 7 published settings; yours is 1.23.")
    expect(part(page, "anchors").locator("tbody tr")).to_have_count(8)
    assert violations(page) == []
    # Of benchmarks, requests at once and speedups are known.
    drafting = {"num_drafts": 1000, "draft_tokens": 3000, "accepted_tokens": 1500}
    drafting = {f"spec_decode_{name}": value for name, value in drafting.items()}
    drafting["spec_decode_per_position_acceptance_rates"] = [0.8, 0.45, 0.25]
    speeds = {1: (50, 96), 64: (1500, 1200)}
    results = [{"max_concurrency": load, "output_throughput": pair[0]} for load, pair in speeds.items()]
    results += [{"max_concurrency": load, "output_throughput": pair[1], **drafting} for load, pair in speeds.items()]
    part(page, "speedups").fill("")
    read(page, *results)
    assert figure(page, "load") == "32.5 (1 – 64)"
    expect(part(page, "notes")).to_contain_text("by requests at once: 1.92 at 1; 0.80 at 64.")
    expect(findings).to_contain_text("At load 1 (requests at once) the speedup is 1.92, at load 64 it is 0.80")
    read(page, EXACT)
    expect(page.locator("specviz-served [data-figure=load]")).to_have_count(0)
    part(page, "speedups").fill("fast")
    part(page, "speedups").press("Enter")
    answered(page)
    expect(part(page, "problem")).to_contain_text("1:1.9 32:0.8")


@pytest.mark.parametrize(
    ("typed", "read"),
    [
        ("1.9", [(1, 1.9)]),
        ("1,9", [(1, 1.9)]),
        ("1:1.9 32:0.8", [(1, 1.9), (32, 0.8)]),
        ("1:1.9,32:0.8", [(1, 1.9), (32, 0.8)]),
        ("32:0,8, 1:1,9", [(1, 1.9), (32, 0.8)]),
        ("1.9 0.8", None),
        ("1:1.9 1:0.8", None),
        ("1.9,0.8", None),
    ],
)
def test_a_comma_may_be_a_decimal_sign_and_a_load_has_one_speedup(typed, read):
    if read is None:
        with refused("speedup", "Write a measured speedup as 1.9"):
            served_diagnosis._speedups(typed, 1.0)
    else:
        assert served_diagnosis._speedups(typed, 1.0) == read


#: A file is dropped on the field.
DROP = f"""([name, bytes]) => {{
  const given = new DataTransfer();
  given.items.add(new File([new Uint8Array(bytes)], name));
  const field = {VIEW}.shadowRoot.querySelector('[part=field]');
  field.dispatchEvent(new DragEvent('drop', {{ dataTransfer: given, bubbles: true, cancelable: true }}));
}}"""


def test_a_file_is_read_in_every_encoding_that_programs_write(page):
    for encoding in ("utf-8-sig", "utf-16", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be"):
        data = json.dumps({"id": f"{encoding} é😀", **EXACT}, ensure_ascii=False).encode(encoding)
        page.evaluate(DROP, ["windows.json", list(gzip.compress(data) if encoding == "utf-16" else data)])
        page.wait_for_function("() => window.asked")
        text = page.evaluate("() => { const { text } = window.asked; window.asked = null; return text; }")
        assert json.loads(text.lstrip("\ufeff"))["id"] == f"{encoding} é😀"


def test_a_thousand_requests_come_as_quantiles_and_extremes_and_are_not_written_into_the_field(page, alone):
    text = many(1000)
    page.evaluate(DROP, ["many.jsonl", list(text.encode())])
    answered(page)
    expect(part(page, "summary")).to_contain_text("1000 requests, 64000 target passes")
    assert part(page, "field").input_value() == ""
    assert page.evaluate(f"() => {VIEW}.shadowRoot.querySelectorAll('*').length") < 600
    expect(part(page, "rows").locator("tbody tr")).to_have_count(8)
    message = json.loads(told(f'{text}\n{{"acceptance_histogram": [0, 0], "num_spec_tokens": 1}}'))
    assert (message["requests"], message["unknown"]) == (1001, 0)  # who drafted nothing hides nothing
    values = sorted(one.tokens_per_pass for one in read_metrics(text).requests)
    assert message["quantiles"] == [values[place] for place in (0, 100, 500, 899, 999)]
    assert len(message["curve"]) == 101 and len(told(text)) < 10_000
    # On a phone nothing is cut.
    phone = alone("served", "de", viewport={"width": 390, "height": 844}, color_scheme="dark")
    part(phone, "fold").locator("summary").first.click()
    give(phone, "served", [told(many(3), language="de")])
    expect(part(phone, "summary")).to_contain_text("3 Anfragen")
    assert_no_sideways_scrolling(phone)
    assert violations(phone) == []


def test_the_terminal_prints_the_same_figures():
    text = served_text(read_metrics(json.dumps([EXACT | {"id": "a\x1b[31m"}, VAGUE])), cost=0.0)
    assert "2 requests, 47 target passes" in text and "\x1b" not in text
    assert "α, accepted / judged, 1 of 2 requests:" in text and "0.200" in text
    assert "best γ up to 16 by the formula at c = 0" in text
    bad = json.dumps({"num_spec_steps": "\x1b[31m"})
    lines = served_text(read_metrics("\n".join([SCRAPE, LLAMA, bad]))).splitlines()
    assert lines[0].startswith("1 requests, 1 summaries of many requests, 43 target passes")
    assert any(line.startswith("- Only 9") for line in lines)
    assert lines[-2] == "1 left out; the first:" and lines[-1].startswith("Request 2: num_spec_steps must be")
    # Two tokens were not drafted: at most one pass was short, the one that accepted one; a single one, and none was.
    short = SCRAPE.replace("vllm:", "llamacpp:").replace("129.0", "127.0")
    lines = served_text(read_metrics(short)).splitlines()
    assert lines[5].split()[-3:] == ["0.200", "to", "0.204"]  # 10 of 50, or of 49
    assert [line.split()[2:] for line in lines[8:11]] == [["0.093"], ["0.750", "to", "1.000"], ["1.000"]]
    assert json.loads(told(short))["alpha_between"] == [10 / 50, 10 / 49]
    assert json.loads(told(short.replace("127.0", "128.0")))["alpha"] == 10 / 50
    cut = (
        "SpecDecoding metrics: Mean acceptance length: 1.50, Drafted: 4 tokens, Per-position acceptance rate: 0.5, 0.5"
    )
    assert json.loads(told(cut, chains=True))["tokens_per_pass"] == 1.5  # of two passes, and nobody says what they kept
    assert "2.410" in served_text(read_metrics(MEAN.format("2.41")))
