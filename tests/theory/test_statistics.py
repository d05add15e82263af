"""Counts beside a distribution: chi-square, total variation, and what chance alone makes of them."""

from __future__ import annotations

import math

import numpy
import pytest
import scipy.stats

from specviz.theory.statistics import Evidence, chi_square, noise, steps, tail, total_variation


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
    assert found.mean == pytest.approx((chances * distances).sum(), rel=0.04)
    assert chances[distances > found.high * 1.1].sum() < 0.001 < chances[distances > found.high * 0.9].sum()


def test_noise_of_many_outcomes_is_that_of_the_normal_distribution():
    probs = numpy.random.default_rng(1).dirichlet(numpy.ones(50))
    for found in noise(probs, [5_000, 20_000]):
        normal = numpy.sqrt(2 * probs * (1 - probs) / (math.pi * found.runs)).sum() / 2
        assert found.mean == pytest.approx(normal, rel=0.02)
        assert found.low < found.mean < found.high < 2 * found.mean


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
