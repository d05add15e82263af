"""Five questions on recorded rounds, in two parallel forms: one before a lesson, one after it."""

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from specviz.records.recordings import Recording
from specviz.records.runs import DraftedToken, Run
from specviz.theory.formulas import expected_speedup, expected_tokens

#: The questions, in the order in which a class's answers are shown; each has `CHOICES` options. The last ones transfer
#: what was learned to what a lesson on chains does not show: a tree, and a drafter that does not pay.
TAUGHT, TRANSFER = ("kept", "replaced", "law"), ("tree", "pays")
QUESTIONS = TAUGHT + TRANSFER
CHOICES = 3

#: A token is asked about if its coin is at least this far from its bound, and options if their p is at least that:
#: figures are shown with two decimals.
_APART, _LEAST = 0.04, 0.02

#: What leaves the text's distribution as it is, and last what does not, for each form.
_CHANGES = (("worse", "longer", "threshold"), ("copying", "block", "from_p"))

#: α, c and γ of three pairs. The one that loses has neither the lowest α nor the highest c or γ: no figure alone tells.
_PAIRS = (((0.9, 0.5, 2), (0.3, 0.02, 6), (0.5, 0.4, 4)), ((0.8, 0.4, 2), (0.2, 0.01, 5), (0.4, 0.3, 4)))

#: The recorded run of each form's question about a replaced token.
_REPLACED = ("sampled", "at_once")


def quiz_message() -> dict[str, Any]:
    """The message of the quiz: two forms of `QUESTIONS`.

    A question has the values of its sentences, in which {"token": text} is a model's own text, `CHOICES` options with a
    key and values each, and `truth`, the index of the right one.
    """
    sampled_runs = [Recording(name).load() for name in _REPLACED]
    judged = _judged(sampled_runs[0], "rejected"), _judged(sampled_runs[0], "accepted")
    replaced = [next(_replaced(run)) for run in sampled_runs]
    siblings = islice(_sibling(Recording("tree").load()), len(_PAIRS))
    forms = zip(judged, replaced, map(_law, _CHANGES), siblings, map(_pays, _PAIRS), strict=True)
    return {"kind": "quiz", "forms": [list(form) for form in forms]}


def _question(name: str, values: Mapping[str, Any], options: list[dict[str, Any]], truth: int) -> dict[str, Any]:
    return {"name": name, "values": values, "options": options, "truth": truth}


def _judged(run: Run, outcome: str) -> dict[str, Any]:
    """Asks about the token with this outcome that came nearest to the other outcome, among those whose p is below q."""
    tokens = [
        token
        for round_ in run.rounds
        for token in round_.drafted
        if token.outcome == outcome and _LEAST <= (token.p or 0) < (token.q or 0) and _distance(token) >= _APART
    ]
    token = min(tokens, key=_distance)
    values = {"token": {"token": token.text}, "p": token.p, "q": token.q, "u": token.u, "bound": token.accept_prob}
    options = ["accepted", "rejected", "depends"]
    return _question("kept", values | {"why": outcome}, [{"key": key} for key in options], options.index(outcome))


def _distance(token: DraftedToken) -> float:
    """How far the coin of a judged token fell from its bound."""
    assert token.u is not None and token.accept_prob is not None, "recorded by our own engine, above temperature 0"
    return abs(token.u - token.accept_prob)


def _replaced(run: Run) -> Iterator[dict[str, Any]]:
    """Asks which of three tokens cannot take a rejected one's place: that of which the drafter left nothing."""
    for round_ in run.rounds:
        rejected = next((token for token in round_.drafted if token.outcome == "rejected"), None)
        if rejected is None or (rejected.q or 0) < _LEAST:
            continue
        row = round_.top[rejected.parent + 1]
        p, q = dict(row.p), dict(row.q)
        ids = [id for id in p if id != rejected.id and p[id] >= _LEAST and abs(p[id] - q.get(id, 0)) >= _LEAST / 2]
        covered = [id for id in ids if p[id] < q.get(id, 0)]
        uncovered = [id for id in ids if id not in covered]
        if covered and len(uncovered) >= CHOICES - 1:
            chosen = [*uncovered[: CHOICES - 1], covered[0]]
            options = [
                {"key": "token", "token": {"token": run.vocabulary[id]}, "p": p[id], "q": q.get(id, 0.0)}
                for id in chosen
            ]
            values = {"token": {"token": rejected.text}, "p": rejected.p, "q": rejected.q, "none": options[-1]["token"]}
            yield _question("replaced", values, options, CHOICES - 1)


def _law(changes: tuple[str, ...]) -> dict[str, Any]:
    return _question("law", {}, [{"key": key} for key in changes], len(changes) - 1)


def _sibling(run: Run) -> Iterator[dict[str, Any]]:
    """Asks for the bound of a token whose sibling was rejected: by p as it was before, the bound would be another."""
    for round_ in run.rounds:
        for place, token in enumerate(round_.drafted):
            siblings = [one for one in round_.drafted[:place] if one.parent == token.parent]
            p, q, left, bound = token.p or 0, token.q or 1, token.p_left, token.accept_prob
            if len(siblings) != 1 or left is None or bound is None or not _APART <= bound <= min(1, p / q) - _APART:
                continue
            tokens = {"first": {"token": siblings[0].text}, "second": {"token": token.text}}
            options: list[dict[str, Any]] = [{"key": "bound", "bound": one} for one in (bound, min(1, p / q))]
            figures = {"p": p, "q": q, "left": left, "bound": bound}
            yield _question("tree", tokens | figures, [*options, {"key": "discarded"}], 0)


def _pays(pairs: tuple[tuple[float, float, int], ...]) -> dict[str, Any]:
    speedups = [expected_speedup(alpha, gamma, c) for alpha, c, gamma in pairs]
    truth = speedups.index(min(speedups))
    alpha, c, gamma = pairs[truth]
    values = {"tokens": expected_tokens(alpha, gamma), "passes": gamma * c + 1, "speedup": speedups[truth]}
    options = [{"key": "pair", "alpha": alpha, "c": c, "gamma": gamma} for alpha, c, gamma in pairs]
    return _question("pays", values, options, truth)
