"""Whether a filter was left on while tokens were drawn: nothing ever comes from where much is expected."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy
from numpy.typing import NDArray

from specviz.theory.sample_tests import Floats, Rows

#: The settings that are looked for, the tightest first: engines' defaults and what people choose.
GRID: dict[str, tuple[float, ...]] = {
    "top_k": (1, 5, 10, 20, 30, 40, 50, 64, 100, 200),
    "top_p": (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.98, 0.99),
    "min_p": (0.2, 0.1, 0.05, 0.02, 0.01),
}

#: So many tokens must be expected where none came, or next to none: rounding moves a few across the border.
LEAST_MISSING, ACROSS = 30.0, 0.02

#: From what share on an observed edge is another setting than the usual one beside it.
CLEARLY = 0.1

#: The likeliest symbols of a row that are sorted; all settings of the grid lie among them.
SORTED = 1024


@dataclass
class TruncationEvidence:
    """By filter and setting: how many tokens came from outside, and how many were expected there."""

    outside: dict[tuple[str, float], float] = field(default_factory=dict)
    expected: dict[tuple[str, float], float] = field(default_factory=dict)
    #: The tightest setting that no token lies outside of.
    edges: dict[str, float] = field(default_factory=lambda: {"top_k": 1, "top_p": 0.0, "min_p": 1.0})

    def add(self, rows: Rows) -> None:
        probs = numpy.exp(rows.log_probs)
        drawn = probs[numpy.arange(len(rows.drawn)), rows.drawn]
        more = probs > drawn[:, None]
        rank, above = more.sum(-1), (probs * more).sum(-1)
        likeliest = -numpy.sort(-_largest(probs), axis=-1)
        mass, best = likeliest.cumsum(-1), likeliest[:, 0]
        self.edges = {
            "top_k": max(self.edges["top_k"], int(rank.max()) + 1),
            "top_p": max(self.edges["top_p"], float(above.max())),
            "min_p": min(self.edges["min_p"], float((drawn / best).min())),
        }
        for k in GRID["top_k"]:
            place = min(int(k), mass.shape[1]) - 1
            self._note("top_k", k, rank >= k, 1 - mass[:, place])
        for p in GRID["top_p"]:
            places = (mass < p).sum(-1).clip(max=mass.shape[1] - 1)
            self._note("top_p", p, above >= p, 1 - mass[numpy.arange(len(mass)), places])
        for share in GRID["min_p"]:
            unlikely = likeliest < share * best[:, None]
            rest = 1 - mass[:, -1]
            self._note("min_p", share, drawn < share * best, (likeliest * unlikely).sum(-1) + rest)

    def _note(self, name: str, setting: float, outside: NDArray[numpy.bool_], expected: Floats) -> None:
        key = (name, setting)
        self.outside[key] = self.outside.get(key, 0.0) + float(outside.sum())
        self.expected[key] = self.expected.get(key, 0.0) + float(expected.clip(min=0).sum())

    def found(self) -> dict[str, float]:
        """By filter, the tightest setting that all tokens keep to, those filters first that leave most out.

        One of the usual settings, unless the tokens keep to one that is clearly tighter.
        """
        usual: dict[str, float] = {}
        for name, settings in GRID.items():
            kept = [
                setting
                for setting in settings
                if self.expected.get((name, setting), 0.0) >= LEAST_MISSING
                and self.outside[name, setting] <= ACROSS * self.expected[name, setting]
            ]
            if kept:
                usual[name] = kept[0]
        # Rounded, so that of filters that leave out the same the first one is named.
        ordered = sorted(usual.items(), key=lambda item: -round(self.expected[item], 6))
        return {name: self._tighter(name, setting) for name, setting in ordered}

    def _tighter(self, name: str, setting: float) -> float:
        edge = self.edges[name]
        if name == "top_k":
            return edge if edge <= (1 - CLEARLY) * setting else setting
        if name == "top_p":
            return math.ceil(1000 * edge) / 1000 if 1 - edge > (1 + CLEARLY) * (1 - setting) else setting
        return math.floor(1000 * edge) / 1000 if edge > (1 + CLEARLY) * setting else setting


def _largest(probs: Floats) -> Floats:
    if probs.shape[1] <= SORTED:
        return probs
    return numpy.partition(probs, probs.shape[1] - SORTED, axis=-1)[:, -SORTED:]
