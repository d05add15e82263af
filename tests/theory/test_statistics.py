"""Statistics: the tests and intervals are scipy's, and hold what they promise of speeds that vary."""

import math

import numpy
import pytest
import scipy.stats
from scipy import stats

from specviz.theory.statistics import (
    LEVEL,
    SIGNIFICANT,
    Evidence,
    Ratio,
    TurnPair,
    alike,
    chi_square,
    noise,
    noticed,
    over_prompts,
    ratio_of,
    steps,
    student_t,
    tail,
    total_variation,
)


def test_the_chi_square_test_is_scipys():
    generator = numpy.random.default_rng(0)
    probs = generator.dirichlet(numpy.ones(20))
    counts = generator.multinomial(200, probs)
    large = 200 * probs >= 5
    observed = [*counts[large], counts[~large].sum()]
    expected = [*(200 * probs[large]), 200 * probs[~large].sum()]
    assert (~large).sum() > 1 and expected[-1] >= 5
    wanted = scipy.stats.chisquare(observed, expected)
    found = chi_square(counts.tolist(), probs, probs, probs)
    assert found.statistic == pytest.approx(wanted.statistic)
    assert found.p_value == pytest.approx(wanted.pvalue)
    assert (found.cells, found.pooled) == (len(observed), (~large).sum())


@pytest.mark.parametrize("degrees", [1, 7, 63, 400])
def test_the_tail_is_scipys(degrees):
    for statistic in (0.0, 0.5 * degrees, degrees, 2.0 * degrees, 5.0 * degrees):
        assert tail(statistic, degrees) == pytest.approx(scipy.stats.chi2.sf(statistic, degrees), rel=1e-9)
    assert tail(1e5, degrees) == 0


@pytest.mark.parametrize("cells", [2, 8, 64])
def test_a_deviation_that_is_said_to_be_noticed_is_noticed_nine_times_in_ten_whatever_its_shape(cells):
    generator = numpy.random.default_rng(cells)
    p, n = numpy.full(cells, 1 / cells), 4000 * cells
    for half in (1, cells // 2):  # moved between two cells, or between the halves of all
        q = p.copy()
        q[:half] += noticed(cells, n) / half
        q[half : 2 * half] -= noticed(cells, n) / half
        draws = generator.multinomial(n, q, size=400)
        found = [chi_square(counts.tolist(), p, p, p).p_value < SIGNIFICANT for counts in draws]
        assert numpy.mean(found) > 0.86  # nine in ten, less three standard deviations


def test_what_cannot_happen_counts_against_it():
    probs = [0.5, 0.5]
    assert chi_square([50, 50], probs, probs, probs).p_value == 1
    assert chi_square([45, 45], probs, probs, probs, outside=30).p_value < 1e-20
    assert total_variation([45, 45], probs, outside=10) == pytest.approx(0.1)
    # Nor do rare outcomes that stayed away make up for it.
    probs = [0.5, 0.49, *[0.0001] * 100]
    assert chi_square([250, 245, *[0] * 100], probs, probs, probs, outside=20).p_value < 1e-6
    assert chi_square([100], [1.0], [1.0], [1.0]).p_value is None


def test_a_distribution_known_up_to_rounding_is_not_blamed_for_it():
    probs, low, high = [0.5, 0.5, 0.0], [0.4, 0.5, 0.0], [0.5, 0.5, 0.1]
    counts = [4000, 5000, 1000]
    assert chi_square(counts, probs, probs, probs).p_value < 1e-100
    assert chi_square(counts, probs, low, high).p_value == 1
    assert chi_square([3000, 5000, 2000], probs, low, high).p_value < 1e-100


@pytest.mark.parametrize(("p", "n"), [(0.5, 40), (0.3, 1000)])
def test_noise_is_that_of_the_binomial_distribution(p, n):
    """With two outcomes total variation is |X/n − p|: mean and quantiles are sums over the binomial distribution."""
    x = numpy.arange(n + 1)
    chances, distances = scipy.stats.binom.pmf(x, n, p), abs(x / n - p)
    [found] = noise([p, 1 - p], [n])
    assert found.low < found.mean < found.high
    assert found.mean == pytest.approx((chances * distances).sum(), rel=0.04)
    assert chances[distances > found.high * 1.1].sum() < 0.001 < chances[distances > found.high * 0.9].sum()


def test_a_right_rule_is_called_wrong_no_more_than_once_in_a_thousand():
    """20,000 samples: about 20 p-values below 0.001 are due, and 45 come less than once in a million."""
    generator = numpy.random.default_rng(2)
    probs = numpy.sort(generator.dirichlet(numpy.ones(16)))[::-1]
    samples = generator.multinomial(600, probs, size=20_000).tolist()
    assert sum(chi_square(counts, probs, probs, probs).p_value < 0.001 for counts in samples) < 45


def test_evidence_keeps_a_curve_of_the_whole_way():
    evidence = Evidence(["a", "b"], [0.5, 0.5], [0.5, 0.5], [0.5, 0.5], 100)
    for place in range(100):
        evidence.add("ab"[place % 2] if place < 90 else "c")
    assert evidence.counts == [45, 45] and evidence.outside == 10
    assert [n for n, _ in evidence.curve] == steps(100, 60)
    assert evidence.curve[0] == (10, 0) and evidence.curve[-1] == (100, pytest.approx(0.1))


#: True seconds of a token, of the one and of the other.
OWN, BASE = 0.01, 0.016

#: Simulated sets of pairs; as many as that, 90 % are 90 % to within three standard errors of 0.95 %.
SETS = 1000


def steady(rng):
    return rng.lognormal(0, 0.05, 2)


def heavy_tailed(rng):
    return numpy.exp(0.03 * rng.standard_t(4, 2))


def disturbed(rng):
    """Now and then something else takes half of the processor, from both."""
    return (2.0 if rng.random() < 0.3 else 1.0) * rng.lognormal(0, 0.03, 2)


def covered(make) -> float:
    """In how many of the sets the interval holds the truth. make: a set of pairs and the true ratio."""
    rng = numpy.random.default_rng(1)
    found = [(ratio_of(pairs), truth) for pairs, truth in (make(rng) for _ in range(SETS))]
    return sum(ratio.low <= truth <= ratio.high for ratio, truth in found) / SETS


@pytest.mark.parametrize("count", [4, 12])
@pytest.mark.parametrize("noise", [steady, heavy_tailed, disturbed])
def test_the_interval_holds_the_truth_nine_times_in_ten(noise, count):
    def make(rng):
        """Each pair's work is its own: a turn brings as many tokens as happen to be accepted."""
        pairs = []
        for _ in range(count):
            tokens, (own, base) = rng.integers(30, 40), noise(rng)
            pairs.append(TurnPair(tokens, OWN * tokens * own, 32, BASE * 32 * base))
        return pairs, BASE / OWN

    assert LEVEL - 0.04 <= covered(make) <= LEVEL + 0.04


def parts_of_a_text(rng, strata: bool) -> list[TurnPair]:
    """Three repeats of the same six parts, of which some are guessed well and others badly."""
    places = [(0.5 + 0.2 * place, place) for place in range(6)]
    return [
        TurnPair(16, OWN * 16 * work * own, 16, BASE * 16 * base, place if strata else None)
        for _ in range(3)
        for work, place in places
        for own, base in [rng.lognormal(0, 0.05, 2)]
    ]


def test_parts_that_were_decoded_again_differ_by_the_machine_alone():
    def make(rng):
        return parts_of_a_text(rng, strata=True), BASE / OWN

    assert LEVEL - 0.04 <= covered(make) <= LEVEL + 0.04
    strata, pooled = (ratio_of(parts_of_a_text(numpy.random.default_rng(0), strata)) for strata in (True, False))
    assert strata.value == pooled.value and strata.high / strata.low < 1.06 < 1.25 < pooled.high / pooled.low


def test_what_slows_both_members_of_a_pair_changes_neither_the_ratio_nor_its_interval():
    quiet = [TurnPair(10, 0.1, 10, 0.2), TurnPair(10, 0.1, 10, 0.2), TurnPair(10, 0.1, 10, 0.2)]
    loud = [TurnPair(one.tokens, s * one.seconds, 10, s * one.base_seconds) for s, one in zip((1, 5, 2), quiet)]
    for pairs in (quiet, loud):
        ratio = ratio_of(pairs)
        assert (ratio.value, ratio.low, ratio.high) == pytest.approx((2, 2, 2))


def test_the_ratio_is_all_tokens_by_all_seconds_and_two_pairs_tell_no_interval():
    pairs = [TurnPair(10, 1.0, 8, 2.0), TurnPair(30, 1.0, 8, 2.0)]
    assert ratio_of(pairs) == Ratio((40 / 2) / (16 / 4)) and not ratio_of(pairs).known
    assert ratio_of([]) is None
    assert Ratio(1.7, 1.0, 3.0).known and not Ratio(1.7, 1.0, 3.01).known, "more than a factor of three says nothing"


def test_students_t_is_scipys():
    for degrees in (2, 3, 5, 10, 30, 1000):
        assert student_t(degrees) == pytest.approx(stats.t.ppf((1 + LEVEL) / 2, degrees), rel=0.02)


def test_two_ratios_cannot_be_told_apart_where_their_difference_is_within_reach_of_both():
    one, near, far = Ratio(1.5, 1.4, 1.6), Ratio(1.6, 1.5, 1.7), Ratio(1.8, 1.7, 1.9)
    assert alike(one, one) and alike(one, near) and alike(near, one)
    assert not alike(one, far) and not alike(far, one)
    assert alike(one, Ratio(9.0)), "of which nothing is known"


def test_other_prompts_would_give_what_the_bootstrap_says():
    rng = numpy.random.default_rng(2)
    tokens = rng.poisson(50, 40)
    found = over_prompts([(count, 10) for count in tokens], lambda sums: sums[:, 0] / sums[:, 1])
    mean, reach = tokens.mean() / 10, 1.645 * tokens.std() / math.sqrt(40) / 10
    assert found.value == pytest.approx(mean)
    assert (found.low, found.high) == pytest.approx((mean - reach, mean + reach), rel=0.01)
    # Prompts where nothing was reached leave the interval to the others, and one prompt has none.
    few, one = (
        over_prompts(sums, lambda sums: sums[:, 0] / sums[:, 1]) for sums in ([(3, 4), (0, 0), (1, 4)], [(3, 4)])
    )
    assert (few, one) == (Ratio(0.5, 0.25, 0.75), Ratio(0.75))
