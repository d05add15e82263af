"""The distribution of the emitted text: exact, counted, kept by right rules and missed by wrong ones; and the tab."""

from __future__ import annotations

import json
import math
import pickle
import re
import threading
import types
from dataclasses import replace

import numpy
import pytest
import scipy.stats
import torch
from elements import element
from on_page import assert_no_sideways_scrolling, violations
from playwright.sync_api import Page, expect
from tiny import assert_same_rows, tiny_pair, with_heads

from specviz import RULES
from specviz.decoding import lossless
from specviz.decoding.engine import rounds
from specviz.decoding.exact_distribution import COMPARED, RUN_TOKENS, ExactDistribution, exact_distribution
from specviz.decoding.lossless import LAB_RULES, GreedyToken, examine
from specviz.decoding.request import Request, prepare
from specviz.decoding.run_record import collect
from specviz.models.pair import ModelPair
from specviz.records.errors import SpecvizError
from specviz.records.settings import DraftParams, RunSettings, SamplingParams
from specviz.records.words import words
from specviz.theory.statistics import Evidence, chi_square, noise, steps, tail, total_variation
from specviz.ui.deployment import Deployment
from specviz.ui.lossless_tab import Trial, trial_order, trial_request, try_rule
from specviz.ui.orders import Order
from specviz.ui.pairs import PairName
from specviz.ui.runner import Runner
from specviz.views.lossless_messages import Asked, greedy_message

PROMPT = "Once upon a time, upon a time"
SAMPLING = SamplingParams(temperature=0.9, top_k=4)
RUNS = 600


@pytest.fixture(scope="module")
def pair() -> ModelPair:
    """A draft model that is right about every other time, and trained parts of random weights."""
    return with_heads(tiny_pair("llama"))


def ordered(pair: ModelPair, rule: str = "auto", drafter: str = "draft_model", **settings) -> Request:
    settings = {"sampling": SAMPLING, "max_new_tokens": RUN_TOKENS, "seed": 1} | settings
    return prepare(pair, RunSettings(PROMPT, drafter=drafter, rule=LAB_RULES[rule].engine_rule, **settings))


def evidence_of(asked: Request, rule: str = "auto", runs: int = RUNS) -> Evidence:
    found = examine(asked, LAB_RULES[rule], runs)
    exact = next(found)
    evidence = Evidence(exact.outcomes, exact.probs, exact.low, exact.high, runs)
    origins = {origin for sample in found if evidence.add(sample.tokens) is None for origin in sample.origins}
    assert evidence.n == runs
    if asked.settings.drafter == "draft_model":
        # Else the rule would have had no say.
        assert "accepted" in origins
    assert origins != {"plain"}
    return evidence


# The exact distribution


def brute_force(pair: ModelPair, ids: tuple[int, ...], sampling: SamplingParams) -> dict[tuple[int, ...], float]:
    """Every path by forwards over the whole text, without a cache, with filters written out again."""

    def row(text: tuple[int, ...]) -> dict[int, float]:
        with torch.inference_mode():
            logits = pair.target(torch.tensor([text])).logits[0, -1].double() / sampling.temperature
        best = sorted(range(len(logits)), key=lambda token: -logits[token])[: sampling.top_k or len(logits)]
        weights = {token: math.exp(logits[token] - logits[best[0]]) for token in best}
        weights = {token: weight for token, weight in weights.items() if weight >= sampling.min_p}
        return {token: weight / sum(weights.values()) for token, weight in weights.items()}

    law = {}
    for a, p in row(ids).items():
        for b, q in [(None, 1.0)] if a in pair.eos_ids else row((*ids, a)).items():
            law[(a,) if b is None else (a, b)] = p * q
    return law


@pytest.mark.parametrize("architecture", ["llama", "mistral", "gpt2"])
@pytest.mark.parametrize("sampling", [SAMPLING, SamplingParams(temperature=1.4, min_p=0.1)], ids=["top-k", "min-p"])
def test_the_distribution_is_that_of_every_path_walked_by_itself(architecture, sampling):
    pair = tiny_pair(architecture)
    asked = ordered(pair, sampling=sampling)
    law, expected = exact_distribution(asked), brute_force(pair, asked.prompt.ids, sampling)
    assert set(law.outcomes) == set(expected)
    assert sum(law.probs) == pytest.approx(1, abs=1e-6)
    for outcome, p, low, high in zip(law.outcomes, law.probs, law.low, law.high):
        assert p == pytest.approx(expected[outcome], abs=1e-5)
        assert low <= p <= high and high - low < 1e-5
    assert law.rounding < 1e-5
    assert list(law.probs) == sorted(law.probs, reverse=True)


def test_a_token_that_ends_the_text_has_nothing_after_it(pair):
    ending = exact_distribution(ordered(pair)).outcomes[0][0]
    pair = replace(pair, eos_ids=frozenset([ending]))
    law = exact_distribution(ordered(pair))
    assert (ending,) in law.outcomes and not any(outcome[0] == ending for outcome in law.outcomes if len(outcome) > 1)
    assert sum(law.probs) == pytest.approx(1, abs=1e-6)
    evidence = evidence_of(ordered(pair), runs=300)
    assert evidence.counts[law.outcomes.index((ending,))] > 0 and evidence.outside == 0


def test_half_precision_is_given_the_bounds_of_its_own_passes():
    pair = tiny_pair("llama")
    half = replace(pair, target=pair.target.bfloat16(), draft=pair.draft.bfloat16(), dtype=torch.bfloat16)
    law = exact_distribution(ordered(half))
    assert sum(law.probs) == pytest.approx(1, abs=1e-6)
    assert 0 <= law.rounding < 0.1
    assert all(low <= p <= high for low, p, high in zip(law.low, law.probs, law.high))


# Statistics


def test_the_chi_square_test_is_scipys():
    generator = numpy.random.default_rng(0)
    law = generator.dirichlet(numpy.ones(20))
    counts = generator.multinomial(200, law)
    large = 200 * law >= 5
    observed = [*counts[large], counts[~large].sum()]
    expected = [*(200 * law[large]), 200 * law[~large].sum()]
    assert (~large).sum() > 1 and expected[-1] >= 5
    wanted = scipy.stats.chisquare(observed, expected)
    found = chi_square(counts.tolist(), law, law, law)
    assert found.statistic == pytest.approx(wanted.statistic)
    assert found.p_value == pytest.approx(wanted.pvalue)
    assert (found.cells, found.pooled) == (len(observed), (~large).sum())


@pytest.mark.parametrize("degrees", [1, 7, 63, 400])
def test_the_tail_is_scipys(degrees):
    for statistic in (0.0, 0.5 * degrees, degrees, 2.0 * degrees, 5.0 * degrees):
        assert tail(statistic, degrees) == pytest.approx(scipy.stats.chi2.sf(statistic, degrees), rel=1e-9)
    assert tail(1e5, degrees) == 0


def test_what_the_law_says_cannot_happen_counts_against_it():
    law = [0.5, 0.5]
    assert chi_square([50, 50], law, law, law).p_value == 1
    assert chi_square([45, 45], law, law, law, outside=30).p_value < 1e-20
    assert total_variation([45, 45], law, outside=10) == pytest.approx(0.1)
    assert chi_square([100], [1.0], [1.0], [1.0]).p_value is None


def test_a_law_known_up_to_rounding_is_not_blamed_for_it():
    law, low, high = [0.5, 0.5, 0.0], [0.4, 0.5, 0.0], [0.5, 0.5, 0.1]
    counts = [4000, 5000, 1000]
    assert chi_square(counts, law, law, law).p_value < 1e-100
    assert chi_square(counts, law, low, high).p_value == 1
    assert chi_square([3000, 5000, 2000], law, low, high).p_value < 1e-100


@pytest.mark.parametrize(("p", "n"), [(0.5, 40), (0.3, 1000)])
def test_noise_is_that_of_the_binomial_law(p, n):
    """With two outcomes total variation is |X/n − p|, whose mean and quantiles are sums over the binomial law."""
    x = numpy.arange(n + 1)
    chances, distances = scipy.stats.binom.pmf(x, n, p), abs(x / n - p)
    [found] = noise([p, 1 - p], [n])
    assert found.mean == pytest.approx((chances * distances).sum(), rel=0.04)
    assert chances[distances > found.high * 1.1].sum() < 0.001 < chances[distances > found.high * 0.9].sum()


def test_noise_of_many_outcomes_is_that_of_the_normal_law():
    law = numpy.random.default_rng(1).dirichlet(numpy.ones(50))
    for found in noise(law, [5_000, 20_000]):
        normal = numpy.sqrt(2 * law * (1 - law) / (math.pi * found.runs)).sum() / 2
        assert found.mean == pytest.approx(normal, rel=0.02)
        assert found.low < found.mean < found.high < 2 * found.mean


def test_a_right_rule_is_called_wrong_no_more_than_once_in_a_thousand():
    """20,000 samples of a law: about 20 p-values below 0.001 are due, and 45 come less than once in a million."""
    generator = numpy.random.default_rng(2)
    law = numpy.sort(generator.dirichlet(numpy.ones(16)))[::-1]
    samples = generator.multinomial(RUNS, law, size=20_000).tolist()
    assert sum(chi_square(counts, law, law, law).p_value < 0.001 for counts in samples) < 45


def test_evidence_keeps_a_curve_of_the_whole_way():
    evidence = Evidence(["a", "b"], [0.5, 0.5], [0.5, 0.5], [0.5, 0.5], 100)
    for place in range(100):
        evidence.add("ab"[place % 2] if place < 90 else "c")
    assert evidence.counts == [45, 45] and evidence.outside == 10
    assert [n for n, _ in evidence.curve] == steps(100, 60)
    assert evidence.curve[0] == (10, 0) and evidence.curve[-1] == (100, pytest.approx(0.1))


# Rules

RIGHT = [
    ("draft_model", "auto", {}),
    ("draft_model", "block", {}),
    ("draft_model", "auto", {"drafting": DraftParams(branches=3)}),
    ("draft_model", "auto", {"num_draft_tokens": 1}),
    ("prompt_lookup", "auto", {}),
    ("suffix", "auto", {}),
    ("lookahead", "auto", {}),
    ("early_exit", "auto", {}),
    ("medusa", "auto", {}),
    ("eagle", "block", {"drafting": DraftParams(branches=1)}),
]


@pytest.mark.parametrize(("drafter", "rule", "settings"), RIGHT)
def test_right_rules_pass(pair, drafter, rule, settings):
    """With a seed drawn by chance a right rule would fail here once in 1,000 times: that is the p-value's meaning.
    The seed is fixed, so it does not fail by chance."""
    evidence = evidence_of(ordered(pair, rule, drafter, **settings), rule)
    [band] = noise(evidence.probs, [RUNS])
    assert evidence.test().p_value > 0.001
    assert evidence.distance < band.high
    assert evidence.outside == 0


@pytest.mark.parametrize("rule", [name for name, rule in LAB_RULES.items() if not rule.lossless])
def test_wrong_rules_fail(pair, rule):
    """Passing by chance is out of reach: with 600 runs over 16 outcomes these lie so far off that χ² exceeds its
    threshold by many of its standard deviations, of which 3.1 already come once in 1,000."""
    evidence = evidence_of(ordered(pair, rule), rule)
    found = evidence.test()
    degrees = found.cells - 1
    threshold = scipy.stats.chi2.isf(0.001, degrees)
    # A sample χ² around its noncentral mean: variance 2(k + 2λ), λ estimated by χ² − k.
    spread = math.sqrt(2 * (degrees + 2 * (found.statistic - degrees)))
    assert found.statistic - 3.1 * spread > threshold
    [band] = noise(evidence.probs, [RUNS])
    assert evidence.distance > 2 * band.high


def test_a_wrong_cache_is_found_out_too(pair, monkeypatch):
    """The whole round is under test, not the rule alone: here the target reads on from a text that lost a token."""
    keep = lossless.CachedModel.keep

    def forgets(self, committed, path):
        keep(self, committed - 1, path)
        self.length = committed + len(path)

    expected = exact_distribution(ordered(pair))
    monkeypatch.setattr(lossless.CachedModel, "keep", forgets)
    sampler = lossless.Sampler(ordered(pair), LAB_RULES["auto"])
    evidence = Evidence(expected.outcomes, expected.probs, expected.low, expected.high, RUNS)
    for _ in range(RUNS):
        evidence.add(sampler.sample().tokens)
    assert evidence.test().p_value < 1e-6


@pytest.mark.parametrize("drafter", ["draft_model", "prompt_lookup", "lookahead", "early_exit", "medusa", "eagle"])
def test_a_run_of_the_lab_is_a_run_of_the_engine(pair, drafter):
    for seed in range(8):
        asked = ordered(pair, drafter=drafter, seed=seed)
        emitted = collect(asked, list(rounds(asked))).token_ids
        assert lossless.Sampler(asked, LAB_RULES["auto"]).sample().tokens == emitted[:COMPARED]


@pytest.mark.parametrize("architecture", ["llama", "mistral"])
def test_every_run_begins_with_the_prompt_alone(architecture):
    pair = tiny_pair(architecture)
    sampler = lossless.Sampler(ordered(pair), LAB_RULES["auto"])
    for _ in range(5):
        sampler.sample()
    with torch.inference_mode():
        target = sampler.start.target()
    assert target.length == len(sampler.start.ids) - 1
    assert_same_rows(target, sampler.start.ids)


def test_origins_say_where_tokens_came_from(pair):
    def origins(rule: str, **settings) -> set[tuple[str, ...]]:
        found = examine(ordered(pair, rule, **settings), LAB_RULES[rule], 60)
        next(found)
        return {sample.origins for sample in found}

    assert origins("everything") == {("accepted", "accepted")}
    assert origins("everything", num_draft_tokens=1) == {("accepted", "bonus")}
    assert origins("auto", num_draft_tokens=1) == {
        ("accepted", "bonus"),
        ("recovered", "accepted"),
        ("recovered", "recovered"),
    }


def test_wrong_rules_exist_in_the_lab_only(pair):
    for name in LAB_RULES.keys() - {"auto", "block", "typical"}:
        assert name not in RULES
        with pytest.raises(SpecvizError, match="no rule"):
            prepare(pair, RunSettings(PROMPT, rule=name))


# Temperature 0


@pytest.mark.parametrize(("rule", "agrees"), [("auto", True), ("typical", True), ("everything", False)])
def test_at_temperature_0_both_texts_are_compared_token_by_token(pair, rule, agrees):
    asked = ordered(pair, rule, sampling=SamplingParams(temperature=0), max_new_tokens=24)
    found = list(examine(asked, LAB_RULES[rule], 1))
    plain, other = ([token for token in found if token.plain is side] for side in (True, False))
    baseline = ordered(pair, drafter=None, sampling=SamplingParams(temperature=0), max_new_tokens=24)
    assert tuple(token.id for token in plain) == collect(baseline, list(rounds(baseline))).token_ids
    assert ([token.id for token in plain] == [token.id for token in other]) is agrees
    assert all(token.margin >= 0 for token in plain)


# The tab, without a browser


@pytest.fixture
def runner(pair, monkeypatch) -> Runner:
    for name in ("TARGET", "DRAFT", "DEVICE", "DTYPE"):
        monkeypatch.delenv(f"SPECVIZ_{name}", raising=False)
    store = types.SimpleNamespace(get=lambda name: pair, loaded=lambda name: pair, home=pair)
    return Runner(store, Deployment.from_environment())


ORDER = Order(PairName(), RunSettings(PROMPT, sampling=SamplingParams(0.9), max_new_tokens=64, seed=5))
TRIAL = Trial("auto", 300, 4)


@pytest.mark.parametrize(
    ("order", "trial", "field"),
    [
        ({"drafter": "plain"}, {}, "drafter"),
        ({"prompt": ""}, {}, "prompt"),
        ({"prompt": "word " * 51}, {}, "prompt"),
        ({"temperature": -1}, {}, "temperature"),
        ({"top_k": -3}, {}, "top_k"),
        ({}, {"rule": "wishful"}, "rule"),
        ({"drafter": "medusa"}, {"rule": "block"}, "rule"),
        ({"drafter": "prompt_lookup"}, {"rule": "mislabelled"}, "rule"),
        ({}, {"runs": 10**9}, "runs"),
        ({}, {"support": None}, "support"),
    ],
)
def test_a_mistake_is_told_beside_its_control(runner, pair, order, trial, field):
    trial_request(pair, ORDER, TRIAL, runner.deployment)
    with pytest.raises(SpecvizError) as caught:
        trial_request(pair, ORDER.but(**order), replace(TRIAL, **trial), runner.deployment)
    assert caught.value.field == field
    assert words("de").error(caught.value)


def test_the_test_keeps_to_the_narrower_top_k():
    for asked, kept in ((3, 3), (40, 4), (0, 4)):
        assert trial_order(ORDER.but(top_k=asked), TRIAL).settings.sampling.top_k == kept


@pytest.mark.parametrize("language", ["en", "de"])
def test_the_last_message_alone_holds_distribution_counts_and_verdict(runner, language):
    sent = list(try_rule(runner, ORDER, TRIAL, threading.Event(), words(language)))
    last = json.loads(sent[-1])
    assert last["phase"] == "finished" and last["n"] == 300 and last["fraction"] == 1
    assert last["verdict"]["state"] == "same"
    assert f"{last['distance']:.3f}" in last["verdict"]["sentence"]
    shares = [bar["share"] for bar in last["bars"]]
    assert sum(shares) == pytest.approx(1) and sum(bar["p"] for bar in last["bars"]) == pytest.approx(1, abs=1e-6)
    assert last["curve"][-1] == [300, last["distance"]]
    assert last["noise"][0][0] == 10 and last["noise"][-1][0] == 300


def test_a_wrong_rule_that_had_no_say_is_still_called_wrong(runner):
    """Prompt lookup finds nothing in this prompt and drafts nothing: every rule then writes the target's own text."""
    order = ORDER.but(drafter="prompt_lookup", prompt="abcdef")
    *_, last = try_rule(runner, order, replace(TRIAL, rule="typical"), threading.Event(), words())
    verdict = json.loads(last)["verdict"]
    assert verdict["state"] == "same" and "wrong all the same" in verdict["why"]


def test_temperature_0_is_judged_by_its_one_text(runner):
    order = ORDER.but(temperature=0)
    right, wrong = (
        json.loads(list(try_rule(runner, order, replace(TRIAL, rule=rule), threading.Event(), words()))[-1])
        for rule in ("auto", "everything")
    )
    assert right["verdict"]["state"] == "same" and right["greedy"]["parting"] is None
    assert wrong["verdict"]["state"] == "different"
    place = wrong["greedy"]["parting"]
    assert wrong["greedy"]["plain"][:place] == wrong["greedy"]["rule"][:place]
    assert "apart in log probability" in wrong["verdict"]["why"]


def test_only_half_precision_excuses_a_near_tie():
    asked = Asked("x", "auto", "Draft model", "", True, True, "bfloat16", 2, 4)
    tokens = [GreedyToken(True, 1, "a", 0.06), GreedyToken(False, 2, "b")]

    def verdict(asked: Asked, tokens: list[GreedyToken]) -> str:
        return json.loads(greedy_message(asked, tokens, "finished", words()))["verdict"]["state"]

    assert verdict(asked, tokens) == "near"
    assert verdict(replace(asked, half_precision=False), tokens) == "different"
    assert verdict(replace(asked, rule="everything", lossless=False), tokens) == "different"
    assert verdict(asked, [replace(tokens[0], margin=1.5), tokens[1]]) == "different"


def test_what_is_found_crosses_process_borders(pair):
    found = list(examine(ordered(pair), LAB_RULES["auto"], 2))
    assert isinstance(found[0], ExactDistribution) and pickle.loads(pickle.dumps(found)) == found


# The tab, in the browser

VIEW = element("lossless")


def start(page: Page, rule: str, runs: int) -> None:
    page.locator(f".sv-lab-rules input[value={rule}]").check()
    page.get_by_label("number input for Runs").fill(str(runs))
    page.locator("#start-lossless").click()
    page.locator("#stop-lossless").wait_for()


def test_the_lab_fills_in_judges_and_keeps_what_was_counted(page):
    page.get_by_role("tab", name="Lossless?").click()
    start(page, "auto", 500)
    page.wait_for_function(f"() => {VIEW}.state === 'running' && {VIEW}.trial?.n > 0")
    page.wait_for_function(f"() => {VIEW}.state === 'finished'")
    view = page.locator("#lossless-view")
    expect(view.locator("[part=headline]")).to_have_text("No difference from the target's distribution")
    assert page.evaluate(f"{VIEW}.trial.n") == 500
    page.locator("#start-lossless").wait_for()

    start(page, "everything", 20000)
    page.wait_for_function(f"() => {VIEW}.trial?.rule === 'everything' && {VIEW}.trial.n > 200")
    page.locator("#stop-lossless").click()
    page.wait_for_function(f"() => {VIEW}.state === 'stopped'")
    counted = page.evaluate(f"{VIEW}.trial.n")
    assert 200 < counted < 20000
    expect(view.locator("[part=headline]")).to_have_text("Not the target's distribution")
    expect(view.locator("[part=why]")).to_contain_text("the drafter's distribution")
    expect(view.locator("[part=status]")).to_contain_text(f"{counted:,}".replace(",", "\u202f"))
    rows = view.locator("[part=history] tbody tr")
    expect(rows).to_have_count(2)
    assert re.search("not the target's", rows.first.inner_text())
    assert violations(page) == []
    page.set_viewport_size({"width": 390, "height": 844})
    assert_no_sideways_scrolling(page)
