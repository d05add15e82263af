"""The lab on many requests at once, from measured passes and from what is typed in, and on forced runs."""

import pytest
from elements import give
from handmade import rounds_of
from playwright.sync_api import Page, expect

from specviz.bench.contestants import Forced, TimedRun, Turn, figures_of
from specviz.records.metrics import tally
from specviz.records.runs import Seconds
from specviz.theory.formulas import expected_tokens
from specviz.theory.roofline import BatchPoint, BatchTimes
from specviz.views.tab_messages import Measuring, why_message

LENGTHS = (1, 2, 3, 4, 6, 8, 12, 16)

#: Milliseconds of a pass over K tokens of each of B requests, and of the draft model's over one of each.
TARGET = {(1, 1): 10.0, (1, 5): 11.0, (1, 17): 20.0, (8, 1): 12.0, (8, 5): 44.0, (32, 1): 30.0}
DRAFT = {1: 1.0, 8: 2.0, 32: 3.0}


def measured(draft: dict[int, float] = DRAFT) -> str:
    points = [BatchPoint("target", b, k, ms / 1e3, 9) for (b, k), ms in TARGET.items()]
    points += [BatchPoint("draft", b, 1, ms / 1e3, 9) for b, ms in draft.items()]
    name = "draft" if draft else None
    times = BatchTimes("target", name, 128, "cpu", "bfloat16", "kernels", 1, (1, 8, 32, 64), tuple(points), 1.0)
    return why_message(batches=Measuring("finished", times))


def timed(*outcomes: str) -> TimedRun:
    rounds = rounds_of(*outcomes, seconds=Seconds(0.004, 0.01, 0.001, 0.015, 0.014))
    return TimedRun(0, 0, 0, (Turn(0, 1, 0.015),), (1,), tally(rounds), True)


def cell(page: Page, gamma: int, column: int):
    return part(page, "batches-table").locator("tbody tr").nth(LENGTHS.index(gamma)).locator("td").nth(column)


def part(page: Page, name: str):
    return page.locator(f"specviz-why [part={name}]")


def speedup(page: Page, gamma: int, column: int) -> float:
    return float(cell(page, gamma, column).inner_text().strip("★ ×"))


def test_speedups_come_from_the_passes_of_as_many_requests(alone):
    page = alone("why")
    give(page, "why", [measured()])
    # α is 0.7 at first; 64 requests were not measured, of 32 no pass that verifies, of eight none over 17 tokens each.
    expect(part(page, "batches-table").locator("thead th")).to_have_text(["γ ╲ B", "1", "8"])
    assert speedup(page, 4, 0) == pytest.approx(expected_tokens(0.7, 4) * 10 / (4 * 1 + 11), abs=0.0051)
    assert speedup(page, 4, 1) == pytest.approx(expected_tokens(0.7, 4) * 12 / (4 * 2 + 44), abs=0.0051)
    assert speedup(page, 1, 0) == pytest.approx(expected_tokens(0.7, 1) * 10 / (1 + 10.25), abs=0.0051)
    expect(cell(page, 6, 1)).to_have_text("–")
    expect(part(page, "batches-finding")).to_contain_text(
        "pays for a single request (γ = 4: 1.85×). With 8 at once, no γ pays"
    )
    # The line runs between what pays and what does not, and the best of each column is marked.
    expect(cell(page, 4, 1)).to_have_attribute("data-edge", "left")
    expect(part(page, "batches-table").locator("[data-best]")).to_have_count(2)
    part(page, "batches-numbers").locator("summary").press("Enter")
    expect(part(page, "batches-times").locator("tbody tr").last).to_have_text("draft, ms1.002.003.00–")
    # Without a draft model a step costs what the second card says.
    give(page, "why", [measured(draft={})])
    assert speedup(page, 4, 0) == pytest.approx(expected_tokens(0.7, 4) * 10 / (4 * 0.2 * 10 + 11), abs=0.0051)
    expect(part(page, "batches-how")).to_contain_text("a draft step counts c = 0.20 passes")
    # The slider is that of the second card.
    page.locator("specviz-why #shared-alpha").press("Home")
    assert page.locator("specviz-why #alpha").input_value() == "0"
    expect(part(page, "batches-finding")).to_contain_text("no γ pays, not even for a single request")


def test_a_gpus_passes_are_computed_from_what_is_typed_in_and_said_to_be(alone):
    page = alone("why")
    expect(part(page, "batches-how")).to_contain_text("Computed, not measured")

    def type_in(**values: str) -> None:
        for name, value in values.items():
            place = ("bandwidth", "peak", "parameters", "bytes", "rows", "context", "cost").index(name)
            part(page, "gpu").locator("input").nth(place).fill(value)

    type_in(bandwidth="1000", peak="100", parameters="10", bytes="2", rows="100", context="1000", cost="0.1")

    def seconds(requests: int, width: int) -> float:
        moved = 20e9 + 100e3 * requests * (1000 + width)
        return max(moved / 1000e9, 2 * 10e9 * requests * width / 100e12)

    for column, requests in enumerate((1, 16, 64, 128, 256, 512)):
        for gamma in (1, 4, 16):
            one = seconds(requests, 1)
            expected = expected_tokens(0.7, gamma) * one / (0.1 * gamma * one + seconds(requests, gamma + 1))
            assert speedup(page, gamma, column) == pytest.approx(expected, abs=0.0051)
    expect(part(page, "batches-finding")).to_contain_text("With 256, no γ pays")
    type_in(peak="")
    expect(part(page, "gpu-problem")).to_have_text("“peak, 10¹² operations per second” needs a number above 0.")
    expect(part(page, "batches-table")).to_have_count(0)


def test_figures_of_other_models_or_passes_do_not_stand_in_one_table(alone):
    page, figures = alone("why"), figures_of([timed("aard")], [timed("", "")])
    rows = part(page, "forced-table").locator("tbody tr")
    for pair, kind, alpha, expected in (
        ("a", "plain", 0.5, 1),
        ("a", "plain", 0.7, 2),
        ("a", "kernels", 0.7, 1),
        ("b", "kernels", 0.7, 1),
    ):
        forced = Forced(pair, kind, alpha, 4, 3, figures, 1.0)
        phases = Measuring("running", forced), Measuring("finished", forced)
        give(page, "why", [why_message(forced=phase) for phase in phases])
        expect(rows).to_have_count(expected)
    # The next one begins at nothing, not where the last one ended.
    give(page, "why", [why_message(forced=Measuring("preparing"))])
    expect(part(page, "forced").locator("[role=progressbar]")).to_have_attribute("aria-valuenow", "0")
