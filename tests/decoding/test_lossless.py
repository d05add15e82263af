"""The lab: the exact distribution, the counts beside it, rules that keep it and rules that cannot."""

import collections
import math
import pickle
from dataclasses import replace

import pytest
import scipy.stats
import torch
from tiny import tiny_pair, with_heads

from specviz import RULES
from specviz.decoding import engine_rules, lossless
from specviz.decoding.engine import rounds
from specviz.decoding.exact_distribution import COMPARED, RUN_TOKENS, ExactDistribution, exact_distribution
from specviz.decoding.lossless import LAB_RULES, examine
from specviz.decoding.record import collect
from specviz.decoding.request import Request, prepare
from specviz.models.pair import ModelPair
from specviz.passes.devices import Stopwatch
from specviz.records.errors import SpecvizError
from specviz.records.settings import DraftParams, RunSettings, SamplingParams
from specviz.rules.draft import Draft, TargetRows, Uniforms, chain
from specviz.rules.sampling import Warper
from specviz.theory.statistics import Evidence, noise

PROMPT = "Once upon a time, upon a time"
SAMPLING = SamplingParams(temperature=0.9, top_k=4)
#: Enough for these models: the wrong rule that is hardest to find lies 6 standard deviations beyond χ²'s threshold, and
#: 2.6 times as far off as chance alone ever goes.
RUNS = 250


@pytest.fixture(scope="module")
def pair() -> ModelPair:
    """A draft model that is right two times in three, and trained parts of random weights that are now and then."""
    return with_heads(tiny_pair("llama", layers=1), seed=4)


@pytest.fixture(scope="module")
def pairs(pair) -> dict[str, ModelPair]:
    """The pair for each drafter: leaving early takes a second layer."""
    return collections.defaultdict(lambda: pair, early_exit=tiny_pair("llama"))


def ordered(pair: ModelPair, rule: str = "auto", drafter: str = "draft_model", **settings) -> Request:
    settings = {"sampling": SAMPLING, "max_new_tokens": RUN_TOKENS, "seed": 1} | settings
    return prepare(pair, RunSettings(PROMPT, drafter=drafter, rule=LAB_RULES[rule].engine_rule, **settings))


def evidence_of(asked: Request, rule: str = "auto", runs: int = RUNS) -> Evidence:
    found = examine(asked, LAB_RULES[rule], runs)
    exact = next(found)
    evidence = Evidence(exact.outcomes, exact.probs, exact.low, exact.high, runs)
    origins = {origin for sample in found if evidence.add(sample.tokens) is None for origin in sample.origins}
    assert evidence.n == runs
    if asked.settings.drafter in ("draft_model", "early_exit", "medusa", "eagle"):
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

    expected = {}
    for a, p in row(ids).items():
        for b, q in [(None, 1.0)] if a in pair.eos_ids else row((*ids, a)).items():
            expected[(a,) if b is None else (a, b)] = p * q
    return expected


@pytest.mark.parametrize("architecture", ["llama", "mistral", "gpt2"])
@pytest.mark.parametrize("sampling", [SAMPLING, SamplingParams(temperature=1.4, min_p=0.1)], ids=["top-k", "min-p"])
def test_the_distribution_is_that_of_every_path_walked_by_itself(architecture, sampling):
    pair = tiny_pair(architecture)
    asked = ordered(pair, sampling=sampling)
    exact, expected = exact_distribution(asked), brute_force(pair, asked.prompt.ids, sampling)
    assert set(exact.outcomes) == set(expected)
    assert sum(exact.probs) == pytest.approx(1, abs=1e-6)
    for outcome, p, low, high in zip(exact.outcomes, exact.probs, exact.low, exact.high):
        assert p == pytest.approx(expected[outcome], abs=1e-5)
        assert low <= p <= high and high - low < 1e-5
    assert exact.rounding < 1e-5
    assert list(exact.probs) == sorted(exact.probs, reverse=True)


def test_a_token_that_ends_the_text_has_nothing_after_it(pair):
    ending = exact_distribution(ordered(pair)).outcomes[0][0]
    pair = replace(pair, eos_ids=frozenset([ending]))
    exact = exact_distribution(ordered(pair))
    assert (ending,) in exact.outcomes and not any(
        outcome[0] == ending for outcome in exact.outcomes if len(outcome) > 1
    )
    assert sum(exact.probs) == pytest.approx(1, abs=1e-6)
    evidence = evidence_of(ordered(pair))
    assert evidence.counts[exact.outcomes.index((ending,))] > 0 and evidence.outside == 0


def test_half_precision_is_given_the_bounds_of_its_own_passes():
    pair = tiny_pair("llama")
    half = replace(pair, target=pair.target.bfloat16(), draft=pair.draft.bfloat16(), dtype=torch.bfloat16)
    exact = exact_distribution(ordered(half))
    assert sum(exact.probs) == pytest.approx(1, abs=1e-6)
    assert 0 <= exact.rounding < 0.1
    assert all(low <= p <= high for low, p, high in zip(exact.low, exact.probs, exact.high))


# Rules

RIGHT = [
    ("draft_model", "auto", {}),
    ("draft_model", "block", {}),
    ("draft_model", "auto", {"drafting": DraftParams(branches=3)}),
    ("draft_model", "auto", {"num_draft_tokens": 1}),
    ("lookahead", "auto", {}),
    ("early_exit", "auto", {}),
    ("eagle", "block", {"drafting": DraftParams(branches=1)}),
    ("draft_model", "greedy_drafts", {"sampling": SamplingParams(temperature=1, top_k=4)}),
    ("draft_model", "greedy_drafts", {"drafting": DraftParams(branches=3)}),
]


@pytest.mark.parametrize(("drafter", "rule", "settings"), RIGHT)
def test_right_rules_pass(pairs, drafter, rule, settings):
    """With a seed drawn by chance a right rule would fail here once in 1,000 times: that is the p-value's meaning.
    The seed is fixed, so it does not fail by chance."""
    evidence = evidence_of(ordered(pairs[drafter], rule, drafter, **settings), rule)
    [band] = noise(evidence.probs, [RUNS])
    assert evidence.test().p_value > 0.001
    assert evidence.distance < band.high
    assert evidence.outside == 0


@pytest.fixture(scope="module")
def hybrid() -> ModelPair:
    """A target with a running state, and a draft model that is refused now and then."""
    return tiny_pair("qwen3_5", noise=0.3)


@torch.no_grad()
def always(target: list[float], draft: list[float]) -> ModelPair:
    """Two models that have these logits for tokens 1, 2, … after every text, and leave nothing to all others."""
    pair = tiny_pair("gpt2", layers=1)
    for model, logits in ((pair.target, target), (pair.draft, draft)):
        model.transformer.ln_f.weight.zero_()
        model.transformer.ln_f.bias.copy_(torch.eye(48)[0])
        model.lm_head.weight[:, 0] = -1000.0
        model.lm_head.weight[1 : len(logits) + 1, 0] = torch.tensor(logits)
    return pair


#: The pairs that show a rule which other pairs hide: a favourite of the drafter that loses its draw; logits that differ
#: by 0.01, between two numbers of bfloat16 that the temperature drives apart; a drafter that is sure after some tokens
#: only; a running state.
PAIRS = {
    "shared_noise": lambda: always([-9, 0, 0], [0.85, -9, 0]),
    "two_precisions": lambda: always([30, 30], [30.06, 30.07]),
    "n_min": lambda: tiny_pair("llama", layers=1, seed=5),
    "stale_state": lambda: tiny_pair("qwen3_5", noise=0.3),
}

#: Where those that change the distribution less show as surely: with few outcomes and more runs, and p-min where the
#: drafter is sure of some tokens, or it drops them all.
TELLING: dict[str, tuple[dict, int]] = {
    "fly": ({"sampling": SamplingParams(temperature=0.9, top_k=2)}, 600),
    "p_min": ({"sampling": SamplingParams(temperature=0.3, top_k=2)}, 1500),
    "confidence_cut": ({"sampling": SamplingParams(temperature=0.9, top_k=2)}, 600),
    "shared_noise": ({"sampling": SamplingParams(temperature=1, top_k=3), "num_draft_tokens": 1}, 1600),
    "two_precisions": ({"sampling": SamplingParams(temperature=0.1, top_k=2)}, RUNS),
    "mixed_rows": ({"sampling": SamplingParams(temperature=0.9, top_k=2)}, 400),
    "n_min": ({"sampling": SamplingParams(temperature=0.9, top_k=3)}, 400),
}


@pytest.mark.parametrize("rule", [name for name, rule in LAB_RULES.items() if not rule.lossless])
def test_wrong_rules_fail(pair, rule):
    """Passing by chance is out of reach: with so many runs over so few outcomes these lie so far off that χ² exceeds
    its threshold by many of its standard deviations, of which 3.1 already come once in 1,000."""
    settings, runs = TELLING.get(rule, ({}, RUNS))
    evidence = evidence_of(ordered(PAIRS.get(rule, lambda: pair)(), rule, **settings), rule, runs)
    found = evidence.test()
    degrees = found.cells - 1
    threshold = scipy.stats.chi2.isf(0.001, degrees)
    # A sample χ² around its noncentral mean: variance 2(k + 2λ), λ estimated by χ² − k.
    spread = math.sqrt(2 * (degrees + 2 * (found.statistic - degrees)))
    assert found.statistic - 3.1 * spread > threshold
    [band] = noise(evidence.probs, [runs])
    assert evidence.distance > 2 * band.high


@pytest.mark.parametrize(
    ("rule", "branches", "off"),
    [
        ("sglang", 1, {"SINGLE": 1.0, "ACCUMULATED": 1.0}),
        ("sglang", 3, {"SINGLE": 1.0, "ACCUMULATED": 1.0}),
        ("fly", 1, {"FLY_ENTROPY": math.inf}),
        ("p_min", 1, {"P_MIN": 0.0}),
        ("confidence_cut", 1, {"LEAST_PRODUCT": 0.0}),
    ],
)
def test_what_engines_offer_is_exact_where_it_is_switched_off(pair, monkeypatch, rule, branches, off):
    for name, value in off.items():
        monkeypatch.setattr(engine_rules, name, value)
    evidence = evidence_of(ordered(pair, rule, drafting=DraftParams(branches=branches)), rule)
    assert evidence.test().p_value > 0.001 and evidence.outside == 0


def rows_of(*rows: list[float], greedy: bool = True) -> TargetRows:
    """Target rows with these probabilities."""
    return TargetRows.of(torch.tensor(rows).log(), Warper(SamplingParams(temperature=0 if greedy else 1)))


UNSURE, SURE = [0.4, 0.35, 0.25, 0.0], [0.97, 0.01, 0.02, 0.0]
COINS = Uniforms(torch.rand(4).double(), torch.full((4,), 0.9).double(), torch.tensor(0.5).double())


@pytest.mark.parametrize(
    ("rows", "tokens", "kept"),
    [
        ((UNSURE, SURE, SURE, SURE), (1, 0, 0), 3),  # refused where the target is unsure, and all goes on well
        ((SURE, SURE, SURE, SURE), (1, 0, 0), 0),
        ((UNSURE, SURE, SURE, SURE), (1, 0, 1), 0),  # refused again within the window
        ((UNSURE, SURE, SURE, SURE), (3, 0, 0), 0),  # a token that the target never writes
        ((SURE, UNSURE, SURE, SURE), (0, 1, 0), 1),  # the window does not end within the draft
    ],
)
@pytest.mark.parametrize("greedy", [True, False])
def test_fly_puts_a_rejection_off_only_for_a_draft_that_goes_on_well(rows, tokens, kept, greedy):
    draft = Draft(torch.tensor(tokens), chain(3))
    decision = engine_rules.defer_rejections(draft, rows_of(*rows, greedy=greedy), COINS)
    assert decision.accepted.sum() == kept


@pytest.mark.parametrize(("token", "kept"), [(0, True), (1, True), (2, False), (3, False)])
def test_relaxed_acceptance_takes_what_is_near_the_likeliest_and_goes_on_with_that(token, kept):
    rows = rows_of([0.65, 0.3, 0.04, 0.01], SURE, greedy=False)
    decision = engine_rules.accept_relaxed(Draft(torch.tensor([token]), chain(1)), rows, COINS)
    assert (bool(decision.accepted), decision.next_token.item()) == (kept, 0)


def test_a_greedy_text_leaves_plain_decodings_where_a_state_keeps_what_was_refused(hybrid):
    def texts(rule):
        asked = ordered(hybrid, sampling=SamplingParams(temperature=0), max_new_tokens=40)
        found = list(examine(asked, LAB_RULES[rule], 1))
        return [[token.id for token in found if token.plain == plain] for plain in (True, False)]

    plain, spoilt = texts("stale_state")
    assert plain != spoilt and plain[0] == spoilt[0]
    assert texts("auto") == [plain, plain]


def test_a_wrong_cache_is_found_out_too(pair, monkeypatch):
    """The whole round is under test, not the rule alone: here the target reads on from a text that lost a token."""
    rewind = lossless.CachedModel.rewind_to_path

    def forgets(self, committed, path):
        rewind(self, committed - 1, path)
        self.length = committed + len(path)

    expected = exact_distribution(ordered(pair))
    monkeypatch.setattr(lossless.CachedModel, "rewind_to_path", forgets)
    sampler = lossless.Sampler(ordered(pair), LAB_RULES["auto"])
    evidence = Evidence(expected.outcomes, expected.probs, expected.low, expected.high, RUNS)
    for _ in range(RUNS):
        evidence.add(sampler.sample().tokens)
    assert evidence.test().p_value < 1e-6


@pytest.mark.parametrize("drafter", ["draft_model", "prompt_lookup", "lookahead", "early_exit", "medusa", "eagle"])
def test_a_run_of_the_lab_is_a_run_of_the_engine(pairs, drafter):
    for seed in range(8):
        asked = ordered(pairs[drafter], drafter=drafter, seed=seed)
        emitted = collect(asked, list(rounds(asked))).token_ids
        assert lossless.Sampler(asked, LAB_RULES["auto"]).sample().tokens == emitted[:COMPARED]


def test_no_run_of_the_lab_reads_a_time(pair, monkeypatch):
    """On CUDA that fails for a moment which the device has not reached, and nothing has waited for it."""

    def unreached(start, end):
        raise RuntimeError("Both events must be completed before calculating elapsed time.")

    monkeypatch.setattr(Stopwatch, "between", staticmethod(unreached))
    assert len(list(examine(ordered(pair), LAB_RULES["auto"], 2))) == 3


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
    for name in (name for name, rule in LAB_RULES.items() if rule.wrong or rule.draws or rule.stale_state or rule.cut):
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


def test_what_is_found_crosses_process_borders(pair):
    found = list(examine(ordered(pair), LAB_RULES["auto"], 2))
    assert isinstance(found[0], ExactDistribution) and pickle.loads(pickle.dumps(found)) == found
