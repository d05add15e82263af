"""The kit for engines' tests: an exact engine fails no more often than it says; faults of the named size are found."""

import itertools
import pathlib
import runpy
from collections import Counter

import numpy
import pytest
from refusal import refused
from scipy import stats

from specviz.testing import TOKEN_BY_TOKEN, WRONG_RULES, assert_lossless
from specviz.theory.sample_tests import binomial_tail


@pytest.mark.parametrize(
    ("count", "draws", "chance"),
    [(0, 7, 0.5), (7, 7, 0.5), (12, 1000, 0.03), (90, 1000, 0.03), (480, 1000, 0.6), (34_500, 60_000, 0.55)],
)
def test_the_tail_of_a_count_is_the_binomial_distributions(count, draws, chance):
    law = stats.binom(draws, chance)
    expected = 2 * (law.cdf(count) if count < draws * chance else law.sf(count - 1))
    assert binomial_tail(count, draws, chance) == pytest.approx(min(1, expected), rel=1e-9)


def test_a_count_that_cannot_be_has_the_p_value_0_and_one_near_the_mean_none():
    assert binomial_tail(1, 50, 0.0) == binomial_tail(49, 50, 1.0) == 0
    assert binomial_tail(50, 50, 1.0) == binomial_tail(5, 50, 0.1) == 1


# False alarms, by enumeration of every sample


def share_that_fails(law: dict[tuple[int, ...], float], draws: int, target_probs, false_alarms: float, **options):
    """How often so many exact draws, of texts with these probabilities, are called wrong: in all their combinations."""
    failed = 0.0
    for counts in itertools.product(range(draws + 1), repeat=len(law)):
        if sum(counts) != draws:
            continue
        sample = [text for text, count in zip(law, counts) for _ in range(count)]
        try:
            assert_lossless(lambda _, sample=sample: sample, target_probs, false_alarms=false_alarms, **options)
        except AssertionError:
            failed += stats.multinomial(draws, list(law.values())).pmf(counts)
    return failed


@pytest.mark.parametrize("false_alarms", [0.2, 0.02])
def test_an_exact_engine_fails_no_more_often_than_is_said(false_alarms):
    row = [0.7, 0.2, 0.1]
    law = {(token,): chance for token, chance in enumerate(row)}
    failed = share_that_fails(law, 14, row, false_alarms, draft_probs=[0.2, 0.3, 0.5])
    assert 0 < failed <= false_alarms


@pytest.mark.parametrize("false_alarms", [0.3, 0.05])
def test_nor_where_the_second_position_depends_on_the_first_and_some_texts_end_there(false_alarms):
    rows = {(): [0.3, 0.5, 0.2], (0,): [0.9, 0.1, 0.0], (1,): [0.2, 0.8, 0.0]}
    law = {(2, -1): rows[()][2]}
    law |= {(a, b): rows[()][a] * rows[a,][b] for a in (0, 1) for b in (0, 1)}
    assert 0 < share_that_fails(law, 9, rows.__getitem__, false_alarms) <= false_alarms


# Power


@pytest.mark.parametrize("bias", [0.05, 0.02])
@pytest.mark.parametrize("chance", [0.05, 0.3, 0.5])
def test_a_token_that_is_off_by_the_named_share_is_found_nine_times_in_ten(bias, chance):
    """As many draws as it asks for; the counts that fail are found by search, and how often they come by the law."""
    asked = []

    def fails(count: int) -> bool:
        def sample(draws):
            asked.append(draws)
            return {0: min(count, draws), 1: draws - min(count, draws)}

        try:
            assert_lossless(sample, [chance, 1 - chance], bias=bias)
        except AssertionError:
            return True
        return False

    assert fails(0)
    draws = asked[-1]
    low, high = round(draws * chance), draws
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fails(middle) else (middle, high)
    assert stats.binom(draws, chance + bias).sf(high - 1) > 0.9


# Controls

TARGET = numpy.array(
    [[0.05, 0.3, 0.35, 0.1, 0.15, 0.05], [0.3, 0.1, 0.1, 0.2, 0.25, 0.05], [0.1, 0.1, 0.4, 0.2, 0.15, 0.05]]
)
DRAFT = numpy.array([[0.4, 0.1, 0.2, 0.1, 0.1, 0.1], [0.1, 0.4, 0.05, 0.15, 0.2, 0.1]])


def checked(rule, seed: int = 0, **options):
    generator = numpy.random.default_rng(seed)
    return assert_lossless(lambda draws: rule(TARGET, DRAFT, draws, generator), TARGET, **options)


@pytest.mark.parametrize("name", WRONG_RULES)
def test_each_wrong_rule_is_found_and_only_where_it_is_wrong(name):
    with pytest.raises(AssertionError, match=r"at position \d, token \d came .* where the target gives"):
        checked(WRONG_RULES[name])
    # What comes before the mistake is right.
    for position in range({"bonus_from_draft": 2, "mixed_rows": 1}.get(name, 0)):
        tokens = WRONG_RULES[name](TARGET, DRAFT, 20_000, numpy.random.default_rng(1))[:, position]
        assert_lossless(lambda draws, tokens=tokens: tokens, TARGET[position])


@pytest.mark.parametrize("seed", range(5))
def test_the_right_rule_passes_and_what_would_have_been_found_is_said(seed):
    found = checked(TOKEN_BY_TOKEN, seed, bias=0.03)
    assert found.p_value > 0.001 and found.counts == 18
    # The first position is reached by all draws; the next ones by fewer, which find less.
    assert 0.02 < found.bias[0] < 0.03 < found.bias[1] < found.bias[2]
    assert f"{100 * found.bias[1]:.1f}" in str(found)


def test_many_small_faults_of_one_direction_are_found_by_the_drafters_rows():
    generator = numpy.random.default_rng(3)
    p, q = generator.dirichlet(numpy.ones(3000), 2)
    tokens = generator.choice(3000, 30_000, p=0.94 * p + 0.06 * q)
    assert_lossless(lambda draws: tokens, p)
    with pytest.raises(AssertionError, match="a token that the drafter prefers"):
        assert_lossless(lambda draws: tokens, p, draft_probs=q)


def test_a_token_that_the_target_never_writes_is_enough():
    with pytest.raises(AssertionError, match=r"token 2 came 1 times in 1,000 draws \(0.10%\).* gives 0.00%"):
        assert_lossless(lambda draws: [0, 1] * 499 + [0, 2], [0.5, 0.5, 0.0], draws=1000)


def test_counts_say_the_same_as_the_tokens_themselves():
    tokens = TOKEN_BY_TOKEN(TARGET, DRAFT, 5000, numpy.random.default_rng(0))
    counts = [Counter(column[column >= 0].tolist()) for column in tokens.T]
    assert assert_lossless(lambda draws: counts, TARGET) == assert_lossless(lambda draws: tokens, TARGET)
    nowhere = assert_lossless(lambda draws: [*counts, Counter()], TARGET)  # a position that no draw reaches
    assert nowhere == assert_lossless(lambda draws: counts, TARGET)
    first = assert_lossless(lambda draws: counts[0], TARGET[0])
    assert first == assert_lossless(lambda draws: tokens[:, 0], TARGET[0]) and first.counts == 6


@pytest.mark.parametrize(
    ("sample", "target"),
    [
        ([0.5, 0.5], [0.5, 0.5]),
        ([[[0]]], [0.5, 0.5]),
        ([-1, -1], [0.5, 0.5]),
        ([0, 2], [0.5, 0.5]),
        ([0, 1], [0.5, 0.6]),
        ([0, 1], [1.5, -0.5]),
    ],
)
def test_what_cannot_be_meant_is_refused_and_is_not_a_finding(sample, target):
    with refused(None):
        assert_lossless(lambda draws: sample, target)


# The example of the documents


@pytest.fixture(scope="module")
def example():
    return runpy.run_path(str(pathlib.Path(__file__).parents[2] / "examples" / "test_own_loop.py"))


@pytest.mark.parametrize("name", ["test_the_loop_is_lossless", "test_this_test_finds_a_common_mistake"])
def test_the_example_does_what_it_says(example, name):
    example[name]()


@pytest.mark.parametrize("settings", [{"bias": 0}, {"bias": -0.02}, {"false_alarms": 1_000_000}, {"false_alarms": 0.0}])
def test_a_share_that_is_none_is_refused(settings):
    """A test that never fails, or that every engine fails, would prove nothing."""
    with refused(*settings):
        assert_lossless(lambda draws: numpy.zeros(draws, int), [0.5, 0.5], **settings)
