"""Five questions on recorded rounds, in two forms of the same difficulty: one before a lesson, one after it."""

from collections.abc import Iterator, Mapping
from typing import Any

from specviz.records.metrics import tally
from specviz.records.recordings import Recording
from specviz.records.runs import DraftedToken, Round, Run
from specviz.theory.formulas import expected_speedup, expected_tokens

#: The questions, in the order in which a class's answers are shown; each has `CHOICES` options.
QUESTIONS = ("kept", "replaced", "law", "cost", "pays")
CHOICES = 3

#: A token is asked about if its coin is at least this far from its bound, and options if their p is at least that:
#: figures are shown with two decimals.
_APART, _LEAST = 0.04, 0.02

#: What leaves the text's distribution as it is, and last what does not, for each form.
_CHANGES = (("worse", "longer", "threshold"), ("copying", "block", "from_p"))

#: α, c and γ of three pairs; one of them loses.
_PAIRS = (((0.8, 0.1, 4), (0.5, 0.05, 3), (0.4, 0.3, 4)), ((0.6, 0.2, 2), (0.3, 0.02, 2), (0.7, 0.8, 5)))

#: The recorded run of each form's question about a replaced token, and of the one about cost.
_REPLACED, _COSTS = ("sampled", "at_once"), ("greedy", "mismatch")


def quiz_message() -> dict[str, Any]:
    """The message of the quiz: two forms of `QUESTIONS`.

    A question has the values of its sentences, in which {"token": text} is a model's own text, `CHOICES` options with a
    key and values each, and `truth`, the index of the right one.
    """
    sampled_runs = [Recording(name).load() for name in _REPLACED]
    timed_runs = [Recording(name).load() for name in _COSTS]
    judged = _judged(sampled_runs[0], "rejected"), _judged(sampled_runs[0], "accepted")
    replaced = [next(_replaced(run)) for run in sampled_runs]
    forms = zip(judged, replaced, _CHANGES, timed_runs, _PAIRS, strict=True)
    return {
        "kind": "quiz",
        "forms": [[*both, _law(changes), _cost(timed), _pays(pairs)] for *both, changes, timed, pairs in forms],
    }


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


def _cost(run: Run) -> dict[str, Any]:
    """Asks for a recorded run's speedup by the formula, with the tokens and times of its rounds."""
    counts, gamma = tally(run.rounds), max(len(round_.drafted) for round_ in run.rounds)
    cost = _seconds(run.rounds, "draft") / counts.levels / (_seconds(run.rounds, "verify") / counts.rounds)
    length = counts.acceptance_length or 1.0
    speedups = {"right": length / (gamma * cost + 1), "free": length, "all": float(gamma + 1)}
    options = [{"key": "speedup", "speedup": speedup} for speedup in speedups.values()]
    return _question("cost", {"gamma": gamma, "c": cost, "length": length} | speedups, options, 0)


def _seconds(rounds: tuple[Round, ...], phase: str) -> float:
    return sum(getattr(round_.seconds, phase) for round_ in rounds)


def _pays(pairs: tuple[tuple[float, float, int], ...]) -> dict[str, Any]:
    speedups = [expected_speedup(alpha, gamma, c) for alpha, c, gamma in pairs]
    truth = speedups.index(min(speedups))
    alpha, c, gamma = pairs[truth]
    values = {"tokens": expected_tokens(alpha, gamma), "passes": gamma * c + 1, "speedup": speedups[truth]}
    options = [{"key": "pair", "alpha": alpha, "c": c, "gamma": gamma} for alpha, c, gamma in pairs]
    return _question("pays", values, options, truth)
