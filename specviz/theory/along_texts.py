"""What a text as a whole says of its acceptance: a rate that falls along it, and a text that loops."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy

from specviz.records.runs import Round
from specviz.theory.statistics import SIGNIFICANT

#: Neighbouring passes resemble each other, so whole blocks are shuffled: of this many passes, or more in long texts.
_BLOCK, _MOST_BLOCKS = 4, 32

#: A shorter text says nothing, and of many texts the longest say enough.
_LEAST_BLOCKS, _MOST_TEXTS = 8, 100

#: The places that are looked at: wherever another eighth of the draft tokens was judged.
_PLACES = 8

#: Shuffled texts that the largest fall is compared with.
_SHUFFLES = 1999

#: A rate that falls by less is no finding.
_APART = 0.1

#: A loop repeats at least this many tokens, and its period, which is at most so long, at least so often after the first
#: time: a refrain comes back later, and rows of a list or of a program differ.
_LEAST_REPEATED, _LONGEST_PERIOD, _TIMES = 32, 128, 3

#: From this share of a text on, loops flatter it.
_FLATTERING = 0.1


class Pass(NamedTuple):
    """A target pass."""

    accepted: int  # draft tokens
    judged: int
    tokens: int  # that it added to the text


@dataclass(frozen=True, slots=True)
class Fall:
    """A rate of acceptance that does not hold."""

    position: int  # tokens of the text up to where it falls
    before: float  # accepted / judged up to there
    after: float  # and from there on
    p_value: float  # how often chance alone makes some fall at least as clear, wherever it is


def passes_of(rounds: Iterable[Round]) -> list[Pass]:
    return [Pass(round_.accepted, round_.judged, len(round_.emitted)) for round_ in rounds]


def find_fall(texts: Sequence[Sequence[Pass]]) -> Fall | None:
    """Where the rate of acceptance falls along these texts, by at least `_APART`; None if chance explains it.

    Each text is compared with itself, so it does not matter that easy texts are shorter. The statistic is the largest
    standardised excess of accepted tokens before any of the places; its distribution comes from the same texts with
    their blocks of passes in random order, which corrects for looking at several places. A text whose rate is constant
    is called once in 1 / `SIGNIFICANT` times.
    """
    longest = sorted(texts, key=len)[-_MOST_TEXTS:]
    blocks = [_blocks(passes) for passes in longest if len(passes) >= _LEAST_BLOCKS * _BLOCK]
    blocks = [block for block in blocks if block[:, 1].sum()]
    if not blocks:
        return None
    places = _places(numpy.concatenate(blocks))
    excess, spread = numpy.zeros((1 + _SHUFFLES, len(places))), numpy.zeros(len(places))
    counts = numpy.zeros((len(places), 2, 2))  # by place: accepted and judged, before it and after
    generator = numpy.random.default_rng(0)
    for accepted, judged, ends in (block.T for block in blocks):
        early = (ends[:, None] <= places).astype(float)
        surplus = accepted - judged * accepted.sum() / judged.sum()
        shuffled = generator.permuted(numpy.tile(surplus, (_SHUFFLES, 1)), axis=1)
        excess += numpy.vstack([surplus, shuffled]) @ early
        before, after = judged @ early, judged @ (1 - early)
        spread += before * after / judged.sum()
        halves = numpy.stack([numpy.stack([accepted, judged]) @ half for half in (early, 1 - early)])
        counts += numpy.where(after > 0, halves, 0).transpose(2, 0, 1)
    scores = excess / numpy.sqrt(numpy.maximum(spread, 1.0))
    largest, place = scores.max(1), int(scores[0].argmax())
    p_value = float(1 + (largest[1:] >= largest[0]).sum()) / (1 + _SHUFFLES)
    (before, after) = (float(accepted / max(judged, 1)) for accepted, judged in counts[place])
    found = p_value <= SIGNIFICANT and before - after >= _APART
    return Fall(int(places[place]), before, after, p_value) if found else None


def _blocks(passes: Sequence[Pass]) -> numpy.ndarray:
    """Blocks of neighbouring passes: draft tokens accepted and judged in each, and the text's tokens after it."""
    columns = numpy.array(passes, dtype=float)
    columns[:, 2] = columns[:, 2].cumsum()
    size = max(_BLOCK, math.ceil(len(columns) / _MOST_BLOCKS))
    starts = range(0, len(columns) - size + 1, size)
    sums = numpy.add.reduceat(columns[:, :2], starts)
    return numpy.column_stack([sums, columns[[*(start - 1 for start in starts[1:]), -1], 2]])


def _places(blocks: numpy.ndarray) -> numpy.ndarray:
    """The numbers of tokens after which another part of all draft tokens was judged."""
    _, judged, ends = blocks[blocks[:, 2].argsort()].T
    parts = numpy.arange(1, _PLACES) / _PLACES
    return numpy.unique(ends[numpy.searchsorted(judged.cumsum(), parts * judged.sum())])


def looped(ids: Sequence[int]) -> int:
    """How many tokens of a text only go round in a loop.

    A loop is a stretch in which every token equals the one a period before it, over at least `_LEAST_REPEATED` tokens
    and `_TIMES` periods. Its first period does not count.
    """
    tokens = numpy.asarray(ids)
    repeated = numpy.zeros(len(tokens), dtype=bool)
    for period in range(1, min(_LONGEST_PERIOD, len(tokens) // (_TIMES + 1)) + 1):
        same = numpy.concatenate([[False], tokens[period:] == tokens[:-period], [False]])
        edges = numpy.flatnonzero(numpy.diff(same))
        for start, end in zip(edges[::2], edges[1::2]):
            if end - start >= max(_LEAST_REPEATED, _TIMES * period):
                repeated[start + period : end + period] = True
    return int(repeated.sum())


def flatters(repeated: int, tokens: int) -> bool:
    """Whether so many tokens in loops say more of the loops than of the drafter."""
    return repeated > _FLATTERING * tokens
