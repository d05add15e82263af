"""Tokens drawn from the distribution are not called wrong, and those of wrong rules are."""

import numpy
import pytest

from specviz.theory.sample_tests import (
    Rows,
    SampleEvidence,
    poisson_tail,
    together,
    two_samples,
    two_sided,
)
from specviz.theory.statistics import SIGNIFICANT
from specviz.theory.truncation import TruncationEvidence

VOCABULARY = 40


def chain(seed: int, sharpness: float = 1.5):
    """A model: the distribution of the next symbol after each one. [V, V]"""
    logits = numpy.random.default_rng(seed).normal(size=(VOCABULARY, VOCABULARY)) * sharpness
    probs = numpy.exp(logits)
    return probs / probs.sum(-1, keepdims=True)


TARGET = chain(1)
DRAFT = (TARGET + chain(2)) / 2


def drawn_from(row, generator):
    return int(generator.choice(VOCABULARY, p=row / row.sum()))


def drawn_answers(model, count, length, generator):
    """Plain decoding's answers."""
    answers = []
    for _ in range(count):
        ids = [drawn_from(model[0], generator)]
        while len(ids) < length:
            ids.append(drawn_from(model[ids[-1]], generator))
        answers.append(ids)
    return answers


def speculated(generator, length, rule="right", gamma=3):
    """An answer made by speculative sampling, whose rule may be wrong."""
    ids, last = [], 0
    while len(ids) < length:
        start, rejected = last, False
        for _ in range(gamma):
            p, q = TARGET[start], DRAFT[start]
            token = drawn_from(q, generator)
            accept = {"always": 1.0, "swapped": q[token] / p[token]}.get(rule, p[token] / q[token])
            if generator.random() < accept:
                ids.append(token)
                start = token
                continue
            residual = {"p": p, "q": q, "unclipped": numpy.abs(p - q)}.get(rule, numpy.maximum(p - q, 0))
            ids.append(drawn_from(residual, generator))
            rejected = True
            break
        if not rejected:
            ids.append(drawn_from((DRAFT if rule == "bonus" else TARGET)[start], generator))
        last = ids[-1]
    return ids[:length]


def rows_of(answers, target=TARGET):
    befores = [before for ids in answers for before in [0, *ids[:-1]]]
    first = numpy.array([place == 0 for ids in answers for place in range(len(ids))])
    with numpy.errstate(divide="ignore"):
        log_probs = numpy.log(target[befores])
    return Rows(log_probs, numpy.array([id for ids in answers for id in ids]), numpy.arange(VOCABULARY), first)


def evidence(answers, target=TARGET):
    judged = SampleEvidence()
    for start in range(0, len(answers), 50):
        judged.add(rows_of(answers[start : start + 50], target))
    return judged


def test_of_200_exact_servers_none_too_many_is_called_wrong():
    """Small samples of a peaked model, where the tails are heaviest."""
    p_values = []
    for seed in range(200):
        generator, model = numpy.random.default_rng(seed), chain(1000 + seed, 2.5)
        answers = drawn_answers(model, 60, 8, generator)
        p_values.append(together(evidence(answers, model).tests()))
    assert sum(p_value < SIGNIFICANT for p_value in p_values) <= 2
    assert sum(p_value < 0.05 for p_value in p_values) <= 20


@pytest.mark.parametrize("rule", ["p", "q", "unclipped", "bonus", "always", "swapped"])
def test_wrong_rules_are_found_and_the_right_one_is_not(rule):
    generator = numpy.random.default_rng(7)
    right = evidence([speculated(generator, 12) for _ in range(700)])
    wrong = evidence([speculated(generator, 12, rule) for _ in range(700)])
    assert together(right.tests()) >= SIGNIFICANT > together(wrong.tests())


def test_one_token_that_is_too_likely_is_named():
    generator, biased = numpy.random.default_rng(3), TARGET.copy()
    biased[:, 5] *= 2.0
    biased /= biased.sum(-1, keepdims=True)
    answers = drawn_answers(biased, 500, 16, generator)
    counts = evidence(answers).counts()
    assert counts.detail["id"] == 5 and counts.p_value < 1e-6 and counts.statistic > 1.5


def test_a_fault_of_the_size_that_is_named_is_found_nine_times_in_ten():
    """By the counts alone, of a model that repeats nothing: each symbol 1/20, one of them too likely."""
    size, runs, n = 20, 60, 2000
    found = 0
    even = numpy.full((size, size), 1 / size)
    for seed in range(runs):
        generator, judged = numpy.random.default_rng(seed), SampleEvidence()
        judged.add(
            Rows(numpy.log(even[:1]).repeat(n, 0), numpy.zeros(n, int), numpy.arange(size), numpy.zeros(n, bool))
        )
        times = judged.found["times"]
        biased = numpy.full(size, (1 - times / size) / (size - 1))
        biased[3] = times / size
        judged, ids = SampleEvidence(), generator.choice(size, n, p=biased)
        judged.add(Rows(numpy.log(even[:1]).repeat(n, 0), ids, numpy.arange(size), numpy.zeros(n, bool)))
        found += judged.counts().p_value * 3 < SIGNIFICANT
    assert found >= 0.8 * runs


def test_a_row_that_lists_only_the_likeliest_is_judged_by_these_and_all_others_together():
    generator, most = numpy.random.default_rng(11), 6

    def coarse(answers):
        whole = rows_of(answers)
        order = numpy.argsort(-whole.log_probs, axis=-1)[:, :most]
        listed = numpy.take_along_axis(whole.log_probs, order, -1)
        rest = numpy.log(1 - numpy.exp(listed).sum(-1, keepdims=True))
        among = order == whole.drawn[:, None]
        column = numpy.where(among.any(-1), among.argmax(-1) + 1, 0)
        ids = numpy.concatenate([numpy.full((len(order), 1), -1), order], axis=1)
        return Rows(numpy.concatenate([rest, listed], axis=1), column, ids, whole.first)

    for rule, wrong in (("right", False), ("always", True)):
        judged = SampleEvidence()
        judged.add(coarse([speculated(generator, 12, rule) for _ in range(300)]))
        assert (together(judged.tests()) < SIGNIFICANT) == wrong


@pytest.mark.parametrize(("name", "setting"), [("top_k", 10), ("top_p", 0.8), ("min_p", 0.1)])
def test_a_filter_that_was_left_on_is_named(name, setting):
    generator = numpy.random.default_rng(5)
    filtered = TARGET.copy()
    order = -numpy.sort(-filtered, axis=-1)
    if name == "top_k":
        least = order[:, setting - 1]
    elif name == "top_p":
        least = order[numpy.arange(VOCABULARY), (order.cumsum(-1) < setting).sum(-1)]
    else:
        least = setting * order[:, 0]
    filtered[filtered < least[:, None]] = 0
    filtered /= filtered.sum(-1, keepdims=True)
    answers = drawn_answers(filtered, 300, 10, generator)
    truncation = TruncationEvidence()
    truncation.add(rows_of(answers))
    assert truncation.found()[name] == setting
    assert together(evidence(answers).tests()) < SIGNIFICANT <= together(evidence(answers, filtered).tests())


def test_nothing_is_called_a_filter_where_all_is_drawn():
    generator, truncation = numpy.random.default_rng(9), TruncationEvidence()
    truncation.add(rows_of([speculated(generator, 12) for _ in range(200)]))
    assert truncation.found() == {}


def test_two_servers_with_one_distribution_are_alike_and_others_are_not():
    generator = numpy.random.default_rng(13)

    def counts(rule):
        return numpy.array(
            [numpy.bincount(speculated(generator, 12, rule), minlength=VOCABULARY) for _ in range(300)], float
        )

    plain = counts("right")
    assert two_samples(counts("right"), plain).p_value >= SIGNIFICANT > two_samples(counts("always"), plain).p_value
    # None of the symbols that are counted stands in any answer of the other.
    found = two_samples(numpy.zeros((30, VOCABULARY)), plain)
    assert found.p_value < SIGNIFICANT and "finds_times" not in found.detail
    # Two that always answer the same, each in its own way: nothing varies, and everything differs.
    apart = [numpy.eye(2)[[one] * 50] for one in (0, 1)]
    assert two_samples(*apart).p_value < SIGNIFICANT and two_samples(apart[0], apart[0]).p_value == 1
    one_answer = [numpy.eye(2)[[one]] for one in (0, 1)]
    assert two_samples(*(numpy.repeat(one, 2, 0) for one in one_answer)).p_value >= SIGNIFICANT, (
        "two answers say little"
    )


def test_tails_are_those_of_the_distributions():
    assert two_sided(1.959964) == pytest.approx(0.05, rel=1e-5)
    # P(N ≤ 3) and P(N ≥ 20) of a Poisson count with mean 10, times two.
    assert poisson_tail(3, 10.0) == pytest.approx(2 * 0.010336050675925726, rel=1e-9)
    assert poisson_tail(20, 10.0) == pytest.approx(2 * 0.003454341840, rel=1e-6)
    assert poisson_tail(400, 100.0) == pytest.approx(4.49e-108, rel=0.02)


def test_a_token_that_cannot_come_is_enough():
    """Of a filter's border alone rounding may be to blame."""
    log_probs = numpy.log(numpy.array([[0.5, 0.5, 1e-300]])).repeat(500, 0)
    log_probs[:, 2] = -numpy.inf
    drawn = numpy.arange(500) % 2
    drawn[0] = 2
    for lenient in (False, True):
        judged = SampleEvidence(lenient)
        judged.add(Rows(log_probs, drawn, numpy.arange(3), numpy.zeros(500, bool)))
        assert judged.impossible == 1 and (together(judged.tests()) >= SIGNIFICANT) == lenient
