"""What is likely wrong with a server's speculation, judging by its own figures.

Figures in, findings out, no words. A finding is made only if the counts support it: a rate is called low if its whole
99 % interval is low. Neighbouring passes are correlated, so the interval is deliberately wide.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from specviz.theory.along_texts import Fall
from specviz.theory.statistics import proportion

#: How often the interval of a rate holds the true one.
SURE = 0.99

#: A position that accepts fewer of the tokens that reach it does not work as it was trained: published curves accept
#: from 0.50 to 0.95 at every position (assets/anchors.json).
BROKEN = 0.3

#: A position that accepts a token in fewer passes is a slot of verification that is mostly wasted.
WASTED = 0.1

#: Fewer passes say nothing.
LEAST_PASSES = 20

#: A measured speedup below this is not a gain.
GAIN = 1.05

#: Two rates that differ by less are not mixed up.
APART = 0.1


@dataclass(frozen=True, slots=True)
class Signs:
    """A server's figures as they are diagnosed. Passes are those that verified a draft."""

    passes: float  # where the server does not count them, at least that many
    counted: bool = True  # whether all of them were counted
    accepted_at: Sequence[float] = ()  # by position, passes that accepted a draft token there
    judged_at: Sequence[float] = ()  # and those that got there, or more where `lengths_known` is false
    lengths_known: bool = False  # whether `judged_at` is exact: the length of every draft is known
    accepted: float | None = None  # draft tokens accepted, in those passes
    drafted: float | None = None  # and proposed; None where that is not known of all passes
    #: (requests at once, measured speed over the same server without drafts), the least load first.
    speedups: Sequence[tuple[float, float]] = ()
    loads: int = 0  # at how many loads it was measured, also where chance leaves open what it is, or it stays the same
    cost: float | None = None  # c, if it is known
    load: tuple[float, float, float] | None = None  # requests at once as the server counts them: least, mean, most
    fall: Fall | None = None  # of the rate along the answers

    @property
    def tokens_per_pass(self) -> float | None:
        return None if self.accepted is None or not self.passes else 1 + self.accepted / self.passes


@dataclass(frozen=True, slots=True)
class ServerFinding:
    """One thing that the figures say. kind and causes are names of texts; figures are the values in them."""

    kind: str
    figures: dict[str, float]
    causes: tuple[str, ...] = field(default=())


def examine(signs: Signs) -> list[ServerFinding]:
    """The findings, what is broken first; `few` or `none` alone where there is too little to go by."""
    if signs.passes < LEAST_PASSES and not signs.speedups:
        known = signs.passes and signs.counted
        return [ServerFinding("few" if known else "none", {"passes": signs.passes, "least": LEAST_PASSES})]
    broken = _broken(signs) if signs.passes >= LEAST_PASSES else None
    tail = None if broken else _tail(signs)
    findings = list(filter(None, [broken, tail, _falling(signs.fall), _definitions(signs), *_speed(signs)]))
    tokens = signs.tokens_per_pass
    if not broken and tokens is not None and not signs.loads:
        figures = {"tokens": tokens}
        if signs.load is not None:
            figures |= dict(zip(("least", "load", "most"), signs.load))
        findings.append(ServerFinding("unpriced_load" if signs.load else "unpriced", figures, ("measure",)))
    return findings


def _broken(signs: Signs) -> ServerFinding | None:
    """The first position that accepts hardly any of what reaches it."""
    if not signs.accepted_at:
        # Whatever was accepted at position 1 is among all that was accepted.
        share = signs.accepted is not None and proportion(min(signs.accepted, signs.passes), signs.passes, SURE)
        if not share or share.high >= BROKEN:
            return None
        return ServerFinding("low_bound", {"rate": share.value, "passes": signs.passes}, _LOW)
    for place, (accepted, judged) in enumerate(zip(signs.accepted_at, signs.judged_at)):
        rate = proportion(accepted, judged, SURE)
        if rate is None or rate.high >= BROKEN:
            continue
        figures = {"position": place + 1, "rate": rate.value, "reached": judged, "before": place}
        figures["first"] = signs.accepted_at[0] / signs.passes
        if place == 0:
            return ServerFinding("low", figures, _LOW)
        kind, causes = ("second", ("slots", "step")) if place == 1 else ("cliff", ("trained", "window"))
        return ServerFinding(kind, figures, causes if signs.lengths_known else (*causes, "short"))
    return None


_LOW = ("target", "template", "layers", "vocabulary", "block")


def _tail(signs: Signs) -> ServerFinding | None:
    """Positions at the end at which hardly any pass accepts a token: fewer would cost little."""
    places = [
        place
        for place, accepted in enumerate(signs.accepted_at)
        if (share := proportion(accepted, signs.passes, SURE)) and share.high < WASTED
    ]
    if not places or places[0] == 0:
        return None
    gamma, wasted = places[0], signs.accepted_at[places[0] :]
    figures = {"gamma": gamma, "slots": len(wasted), "lost": sum(wasted) / signs.passes}
    return ServerFinding("tail", figures, ("shorten",))


def _falling(fall: Fall | None) -> ServerFinding | None:
    """A rate that does not hold along the answers."""
    if fall is None:
        return None
    figures = {"position": fall.position, "before_fall": fall.before, "after_fall": fall.after}
    return ServerFinding("falls", figures, ("length", "harder"))


def _definitions(signs: Signs) -> ServerFinding | None:
    """The two rates that both are called acceptance rate, where they lie apart."""
    if not (signs.lengths_known and signs.drafted and signs.accepted_at) or signs.accepted is None:
        return None
    share, alpha = signs.accepted / signs.drafted, sum(signs.accepted_at) / sum(signs.judged_at)
    return ServerFinding("rates", {"share": share, "alpha": alpha}) if alpha - share >= APART else None


def _speed(signs: Signs) -> list[ServerFinding]:
    """What measured speedups say of the cost of a round, counted in plain steps: tokens per pass / speedup."""
    tokens = signs.tokens_per_pass
    findings: list[ServerFinding] = []
    if not signs.speedups:
        return findings
    (load, speedup), (full, least) = signs.speedups[0], signs.speedups[-1]
    # Who has measured several loads is not told to.
    batch = "batch" if signs.loads < 2 else "crowd"
    if speedup < GAIN and tokens is not None:
        figures = {"tokens": tokens, "speedup": speedup, "round": tokens / speedup, "load": load}
        causes: tuple[str, ...] = ("draft_cost", "rows", batch) if load <= 1 else (batch, "rows", "draft_cost")
        if signs.cost is not None and signs.drafted:
            drafting = signs.cost * signs.drafted / signs.passes
            figures |= {"draft": drafting, "rest": tokens / speedup - drafting}
            causes = ("draft_cost",) if 2 * drafting > tokens / speedup else ("rows", batch)
            findings.append(ServerFinding("no_gain_parts", figures, causes))
        else:
            findings.append(ServerFinding("no_gain", figures, causes))
    if full > load and least < speedup / GAIN:
        figures = {"load": load, "speedup": speedup, "full": full, "least": least, "times": speedup / least}
        findings.append(ServerFinding("load_off" if least < 1 else "load", figures, (batch,)))
    return findings
