"""Rounds and runs written by hand: what the tests of records, figures, charts and the page are fed with."""

import random
from dataclasses import replace
from itertools import accumulate
from typing import Any

from specviz.records.runs import Candidates, DraftedToken, NextToken, PairInfo, Prompt, Round, Run, Seconds
from specviz.records.settings import SamplingParams
from specviz.theory.roofline import Curve, Limits, ModelSize, PassTimes, Point

OUTCOMES = {"a": "accepted", "r": "rejected", "d": "discarded"}

PAIR = PairInfo("by hand", "a target", 40_000_000, "a draft", 4_000_000, "cpu", "float32")


def drafted(outcome: str, *, id: int = 1, text: str | None = None, parent: int = -1) -> DraftedToken:
    """A sampled draft token with that outcome ("a", "r" or "d")."""
    coin = {"u": {"a": 0.125, "r": 0.75, "d": None}[outcome], "accept_prob": None if outcome == "d" else 0.5}
    raw = {"p": 0.25, "q": 0.5, "p_raw": 0.3, "q_raw": 0.45, "draft_u": 0.6}
    return DraftedToken(id, f" w{id}" if text is None else text, parent, **raw, **coin, outcome=OUTCOMES[outcome])


def _token(id: int, text: str, parent: int, p: float, q: float, **verdict: Any) -> DraftedToken:
    """One that was drawn from the models' own distributions."""
    return DraftedToken(id, text, parent, p, q, p_raw=p, q_raw=q, **verdict)


def a_round(
    outcomes: str = "",
    index: int = 0,
    *,
    texts: tuple[str, ...] = (),
    ids: tuple[int, ...] = (),
    emit: int | None = None,
    stop_reason: str | None = None,
    seconds: Seconds | None = None,
) -> Round:
    """A round of a chain: "aard" is two accepted, one rejected, one discarded; "" is a plain step.

    texts, ids: of the draft tokens and then the next token. emit: how many of the decided tokens survive the stop.
    """
    count = len(outcomes)
    ids = ids or tuple(range(1, count + 2))
    texts = texts or tuple(f" w{id}" for id in ids)
    tokens = tuple(
        drafted(outcome, id=ids[i], text=texts[i], parent=i - 1 if i else -1) for i, outcome in enumerate(outcomes)
    )
    kept = outcomes.count("a")
    clean = kept == count
    decided = [*range(kept), count]
    emitted = decided[:emit]
    likely = ((ids[-1], 0.4), (99, 0.35))
    last = Candidates(p=likely, residual=() if clean else ((ids[-1], 0.6), (99, 0.4)), p_raw=likely)
    top = [
        Candidates(((99, 0.5), (id, 0.25)), ((id, 0.5), (99, 0.2)), p_raw=((99, 0.4), (id, 0.3)), q_raw=((id, 0.45),))
        for id in ids[:-1]
    ] + [last]
    if not clean:
        top[kept] = replace(top[kept], residual=last.residual)
    return Round(
        index=index,
        drafted=tokens,
        next=NextToken(ids[-1], texts[-1], "bonus" if clean else "recovered", 0.375, 0.4 if clean else 0.6),
        emitted=tuple(ids[i] for i in emitted),
        pieces=tuple(texts[i] for i in emitted),
        top=tuple(top),
        seconds=seconds or Seconds(0.002, 0.004, 0.0005, 0.0065, 0.0055, 0.01 if index == 0 else 0.0),
        stop_reason=stop_reason,
        dropped=len(decided) - len(emitted),
    )


def rounds_of(*outcomes: str, **settings: Any) -> tuple[Round, ...]:
    """One chain a word, numbered from 0."""
    return tuple(a_round(word, index, **settings) for index, word in enumerate(outcomes))


def a_run(rounds: tuple[Round, ...], *, prompt: str = "Once upon a time", **settings: Any) -> Run:
    """A finished run of these rounds; `settings` replace fields of Run."""
    vocabulary = {99: " other"}
    for one in rounds:
        vocabulary |= {token.id: token.text for token in one.drafted} | {one.next.id: one.next.text}
    fields: dict[str, Any] = {
        "pair": PAIR,
        "drafter": "draft_model" if any(one.drafted for one in rounds) else None,
        "settings": {},
        "num_draft_tokens": max((len(one.drafted) for one in rounds), default=0),
        "sampling": SamplingParams(temperature=1.0),
        "seed": 0,
        "max_new_tokens": 100_000,
        "prompt": Prompt(prompt, (7, 8, 9)),
        "rounds": rounds,
        "stop_reason": (rounds[-1].stop_reason if rounds else None) or "stopped",
        "text": "".join(piece for one in rounds for piece in one.pieces),
        "token_ids": tuple(id for one in rounds for id in one.emitted),
        "vocabulary": vocabulary,
        "versions": {"python": "3.12"},
    }
    return Run(**(fields | settings))


# Trees and other rules: made-up distributions, and verdicts worked out from them, so that every number agrees


#: What the rounds below draft from: word i has the id i + 1.
WORDS = (
    *(" the", " a", " king", " queen", " old", " dark", " forest", " sea"),
    *(" was", " went", " said", " little", " into", " of", " castle", " dragon"),
)
VOCABULARY = {place + 1: word for place, word in enumerate(WORDS)}

Distribution = list[float]


def a_tree(parents: tuple[int, ...], index: int = 0, *, seed: int = 0, sources: tuple[str, ...] = ()) -> Round:
    """A round whose siblings were drawn without replacement and tried in turn (SpecInfer, arXiv 2305.09781, Alg. 2).

    parents: of each draft token, −1 for the committed text. sources: of each draft token.
    """
    chance = random.Random(seed)
    targets = [_distribution(chance) for _ in range(len(parents) + 1)]
    drafts = [_blend(target, _distribution(chance)) for target in targets]
    words: list[int] = []
    distributions: list[Distribution] = []
    for parent in parents:
        earlier = {word for word, other in zip(words, parents) if other == parent}
        distributions.append(_scaled([0.0 if word in earlier else q for word, q in enumerate(drafts[parent + 1])]))
        words.append(chance.choices(range(len(WORDS)), distributions[-1])[0])
    tried, path, left = _try_in_turn(parents, words, distributions, targets, chance)
    tokens = []
    for place, (parent, word) in enumerate(zip(parents, words)):
        u, share = tried.get(place, (None, None))
        first = parents.index(parent) == place
        tokens.append(
            _token(
                *(word + 1, WORDS[word], parent, targets[parent + 1][word], distributions[place][word]),
                u=u,
                accept_prob=None if share is None else min(1.0, share / distributions[place][word]),
                outcome="accepted" if place in path else "discarded" if u is None else "rejected",
                p_left=None if first else share,
                source=sources[place] if sources else None,
            )
        )
    end = path[-1] if path else -1
    clean = end not in parents
    rows = [
        _listed(target, distributions[parents.index(row - 1)] if row - 1 in parents else [])
        for row, target in enumerate(targets)
    ]
    if not clean:
        rows[end + 1] = replace(rows[end + 1], residual=_likeliest(left))
    return _decided(index, tokens, path, left, chance.random(), "bonus" if clean else "recovered", rows)


def _try_in_turn(
    parents: tuple[int, ...], words: list[int], distributions: list[Distribution], targets: list[Distribution], chance
) -> tuple[dict[int, tuple[float, float]], list[int], Distribution]:
    """(coin, share in what was left) of every token that was tried, the accepted path, what is left at its end."""
    tried: dict[int, tuple[float, float]] = {}
    path: list[int] = []
    left = targets[0]
    waiting = [place for place, parent in enumerate(parents) if parent == -1]
    while waiting:
        place = waiting.pop(0)
        u, share = chance.random(), left[words[place]]
        tried[place] = (u, share)
        if u < share / distributions[place][words[place]]:
            path.append(place)
            left = targets[place + 1]
            waiting = [child for child, parent in enumerate(parents) if parent == place]
        else:
            left = _scaled([max(0.0, p - q) for p, q in zip(left, distributions[place])])
    return tried, path, left


def a_block(words: str, coins: tuple[float, ...], index: int = 0) -> Round:
    """A chain judged by block verification (Sun et al. 2024, arXiv 2403.10444), on its example.

    words: two of "A" and "B". The target gives them 1/3 and 2/3 at every position, the draft 2/3 and 1/3.
    """
    target, draft = (1 / 3, 2 / 3), (2 / 3, 1 / 3)
    ids = ["AB".index(word) for word in words]
    weights = [1.0]
    for id in ids:
        weights.append(min(weights[-1] * target[id] / draft[id], 1.0))
    bounds = []
    for weight in weights[1:-1]:
        excess = sum(max(weight * p - q, 0.0) for p, q in zip(target, draft))
        bounds.append(excess / (excess + 1 - weight) if excess else 0.0)
    bounds.append(weights[-1])
    kept = max((place + 1 for place, bound in enumerate(bounds) if coins[place] < bound), default=0)
    tokens = [
        _token(
            *(id + 1, f" {words[place]}", place - 1, target[id], draft[id]),
            u=coins[place],
            accept_prob=bounds[place],
            outcome="accepted" if place < kept else "rejected" if place == kept else "discarded",
        )
        for place, id in enumerate(ids)
    ]
    clean = kept == len(words)
    left = list(target) if clean else _scaled([max(weights[kept] * p - q, 0.0) for p, q in zip(target, draft)])
    rows = [_listed(list(target), list(draft)) for _ in words] + [_listed(list(target), [])]
    if not clean:
        rows[kept] = replace(rows[kept], residual=_likeliest(left))
    names = (" A", " B")
    return _decided(index, tokens, list(range(kept)), left, 0.5, "bonus" if clean else "recovered", rows, names)


def a_typical(index: int = 0) -> Round:
    """A tree of a head's first choices under typical acceptance, which flips no coin: two passed, one path was kept.

    The distribution of its first token is a point, where the target gave that token 0.63: 0.37 away.
    """
    shares, parents = (0.63, 0.22, 0.5, 0.02), (-1, -1, 0, 2)
    outcomes = ("accepted", "rejected", "accepted", "rejected")
    tokens = [
        DraftedToken(
            *(place + 1, WORDS[place], parents[place], share, 1.0, share, share),
            u=None,
            accept_prob=float(share > 0.1),
            outcome=outcomes[place],
            source=f"head {(1, 1, 2, 3)[place]}",
        )
        for place, share in enumerate(shares)
    ]
    rows = [_listed([*shares[:2], 0.15, *[0.0] * 13], []), _listed([0.2, 0.3, 0.5, *[0.0] * 13], [])]
    left = [0.1, 0.2, 0.3, 0.02, 0.38, *[0.0] * 11]
    rows += [_listed(row, []) for row in (_distribution(random.Random(2)), left, _distribution(random.Random(4)))]
    return replace(_decided(index, tokens, [0, 2], left, 0.4, "recovered", rows), distance=1 - shares[0])


def _decided(
    index: int,
    tokens: list[DraftedToken],
    path: list[int],
    left: Distribution,
    u: float,
    kind: str,
    rows: list[Candidates],
    words: tuple[str, ...] = WORDS,
) -> Round:
    """The round of a verdict; its next token is the draw that `u` makes from what is `left`."""
    ends = list(accumulate(left))
    following = next(word for word, end in enumerate(ends) if u < end)
    listed = sorted({following, *(id - 1 for id, _ in _likeliest(left)[:5])})
    line = tuple((word + 1, round(ends[word] - left[word], 6), round(ends[word], 6)) for word in listed)
    below = ends[following] - left[following]
    kept = [tokens[place] for place in path]
    return Round(
        index=index,
        drafted=tuple(tokens),
        next=NextToken(following + 1, words[following], kind, u, left[following], below, line),
        emitted=(*(token.id for token in kept), following + 1),
        pieces=(*(token.text for token in kept), words[following]),
        top=tuple(rows),
        seconds=Seconds(0.002, 0.004, 0.0005, 0.0065, 0.0055, 0.01 if index == 0 else 0.0),
    )


def _distribution(chance: random.Random) -> Distribution:
    return _scaled([chance.random() ** 6 for _ in WORDS])


def _blend(one: Distribution, other: Distribution) -> Distribution:
    return [0.6 * a + 0.4 * b for a, b in zip(one, other)]


def _scaled(weights: Distribution) -> Distribution:
    total = sum(weights)
    return [weight / total for weight in weights]


def _likeliest(distribution: Distribution) -> tuple[tuple[int, float], ...]:
    pairs = [(word + 1, share) for word, share in enumerate(distribution) if share > 0]
    return tuple(sorted(pairs, key=lambda pair: -pair[1])[:8])


def _listed(target: Distribution, draft: Distribution) -> Candidates:
    p = _likeliest(target)
    q = tuple((id, draft[id - 1]) for id, _ in p) if draft else ()
    return Candidates(p=p, q=q, p_raw=p, q_raw=q)


def curve(seconds: dict[int, float], role: str = "target") -> Curve:
    """Passes that took these seconds, by their width."""
    points = tuple(Point(width, one, one, one, 1) for width, one in seconds.items())
    return Curve(role, ModelSize(10, 20, 4.0, 8.0, 16), Limits(1.0, 1.0), points)


def pass_times(*curves: Curve) -> PassTimes:
    """What was measured of a pair whose models have these curves."""
    return PassTimes("target", "draft", 128, "cpu", "bfloat16", "plain", 1, curves, 1.0)
