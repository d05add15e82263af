"""The suffix automaton knows what plain counting knows, and the drafter proposes what followed most often."""

import random
from collections import Counter

import pytest
from fake_target import branch, copying, draft_of

from specviz.drafters.copying import Suffix, SuffixAutomaton


def random_text(seed, length=60, alphabet=3):
    """Tokens of a small alphabet, with a passage that comes again, as texts have them."""
    chance = random.Random(seed)
    text = [chance.randrange(alphabet) for _ in range(length)]
    start = chance.randrange(length // 2)
    return text + text[start : start + length // 3] + [chance.randrange(alphabet)]


def followers(text, string):
    """By plain counting: what followed each earlier occurrence of a string, least recently seen first."""
    places = [end for end in range(len(string), len(text)) if text[end - len(string) : end] == string]
    counts = Counter()
    for place in places:
        counts[text[place]] = counts.pop(text[place], 0) + 1
    return counts


def state_of(automaton, string):
    state = 0
    for token in string:
        state = automaton.transitions[state][token]
    return state


@pytest.mark.parametrize("order", [1, 3, 64])
@pytest.mark.parametrize("alphabet", [1, 2, 4])
def test_every_string_has_the_followers_that_counting_finds_after_every_token(order, alphabet):
    for seed in range(3):
        text, automaton = random_text(seed, 20, alphabet), SuffixAutomaton(order)
        for length, token in enumerate(text, start=1):
            automaton.append(token)
            read = text[:length]
            for start in range(length):
                for end in range(start + 1, min(start + order, length) + 1):
                    state = state_of(automaton, read[start:end])
                    assert automaton.followers[state] == followers(read, read[start:end])


@pytest.mark.parametrize("text", [[5] * 3000, [1, 2] * 1500, random_text(1, 3000, 2)], ids=["one", "two", "random"])
def test_what_a_token_touches_does_not_grow_with_the_text(text):
    automaton, most = SuffixAutomaton(16), []
    for token in text:
        automaton.append(token)
        most.append(sum(1 for _ in automaton.suffixes()))
    assert max(most) <= 16
    assert len(automaton.links) <= 2 * len(text)


# The drafter


def expected_chain(text, budget):
    """(match, tokens, score) of the best chain, by counting: the definition, slowly."""
    best = (0, [], 0.0)
    for size in range(min(Suffix.ORDER, len(text) - 1), 0, -1):
        if not followers(text, text[-size:]):
            continue
        match = longest_with_the_same_places(text, size)
        known, drafted, score, total = text[-match:], [], 1.0, 0.0
        while len(drafted) < min(budget, Suffix.FACTOR * match):
            counts = followers(text, [*known, *drafted][-Suffix.ORDER :])
            if not counts:
                break
            token, count = max(reversed(counts.items()), key=lambda item: item[1])
            score *= count / counts.total()
            if score < Suffix.LEAST_SCORE:
                break
            drafted.append(token)
            total += score
        if total > best[2] + 1e-9:
            best = (match, drafted, total)
    return best


def longest_with_the_same_places(text, size):
    places = [end for end in range(size, len(text) + 1) if text[end - size : end] == text[-size:]]
    while all(end > size and text[end - size - 1] == text[-size - 1] for end in places):
        size += 1
    return size


@pytest.mark.parametrize("budget", [1, 4, 9])
@pytest.mark.parametrize("alphabet", [2, 4, 30])
def test_a_chain_is_the_one_that_counting_finds(budget, alphabet):
    for seed in range(12):
        text = random_text(seed, 60, alphabet)
        draft = draft_of(copying(Suffix), text, budget)
        match, tokens, _ = expected_chain(text, budget)
        assert draft.is_chain and draft.tokens.tolist() == tokens
        assert draft.sources == (f"match {match}",) * len(tokens)


@pytest.mark.parametrize("text", [[], [1], [1, 2, 3, 4]])
def test_nothing_is_drafted_where_nothing_comes_again(text):
    assert draft_of(copying(Suffix, branches=3), text, 4).parents == ()


@pytest.mark.parametrize("branches", [1, 2, 4])
@pytest.mark.parametrize("budget", [1, 3, 8])
def test_a_tree_holds_what_followed_the_most_frequent_sibling_first(branches, budget):
    wide = 0
    for seed in range(20):
        text = random_text(seed, 80, 4)
        draft = draft_of(copying(Suffix, branches), text, budget)
        assert 0 < len(draft.parents) <= budget * branches
        match = int(draft.sources[0].removeprefix("match "))
        ranks = {}
        for index, parent in enumerate(draft.parents):
            before = [*text[-match:], *branch(draft, parent)][-Suffix.ORDER :]
            counts = followers(text, before)
            ranks.setdefault(parent, []).append(counts[int(draft.tokens[index])])
            assert ranks[parent] == sorted(counts.values(), reverse=True)[: len(ranks[parent])]
        widest = max(map(len, ranks.values()))
        assert widest <= branches
        wide += widest > 1
    assert (wide > 0) == (branches > 1)


def test_reading_goes_on_where_it_stopped():
    text = random_text(3, 90, 3)
    drafter = copying(Suffix, branches=2)
    drafter.prefill(text[:10])
    for length in range(10, len(text), 7):
        draft, fresh = draft_of(drafter, text[:length], 5), draft_of(copying(Suffix, branches=2), text[:length], 5)
        assert draft.tokens.tolist() == fresh.tokens.tolist() and draft.parents == fresh.parents
