"""From records to the JSON messages of the page's components: only what is new, and nothing twice.

Components keep their own state, so a message's size depends only on the rounds it carries, not on earlier ones.
A run's messages name the run, and `rounds` gives its first round's index, so a component can tell if it missed one.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from specviz.records.metrics import emission_times, tally
from specviz.records.rules import RULES
from specviz.records.runs import Candidates, DraftedToken, Round, Run, Speedup
from specviz.records.words import Said, joined
from specviz.views.charts import Trail
from specviz.views.labels import label, pair_line, settings_line

#: Figures as JSON-ready values, by position on the page (specviz.views.charts).
Charts = Mapping[int, dict[str, Any]]

#: In the race, one letter per token: where it came from.
SOURCE_LETTERS = {"accepted": "a", "recovered": "r", "bonus": "b", "plain": "p"}


def message(kind: str, **fields: Any) -> str:
    """A message of an element of assets/web, as JSON."""
    return as_json({"kind": kind} | fields)


def text_messages(kind: str) -> Callable[[Said], str]:
    """Makes messages of this kind, which carry a text each."""
    return lambda text: message(kind, text=text)


#: A sentence next to the run on the screen, which stays.
notice = text_messages("notice")


def headline(trail: Trail, measured: Speedup | None) -> dict[str, float | None]:
    """The headline figures, in page order; None is shown as a dash, never guessed."""
    counts = trail.counts
    return {
        "acceptance_length": counts.acceptance_length,
        "acceptance_rate": counts.acceptance_rate,
        "reach": counts.reach,
        # Of the same turns as the speedup: the shown run was timed while it was drawn.
        "tokens_per_second": (measured and measured.tokens_per_second) or counts.tokens_per_second,
        "speedup": measured.ratio if measured else None,
        "speedup_low": measured.low if measured else None,
        "speedup_high": measured.high if measured else None,
        "tokens": counts.tokens,
        "target_passes": counts.rounds,
    }


def opening(run_key: str, run: Run, **fields: Any) -> str:
    """Clears the component and opens a run; its rounds are not read.

    fields: ``recorded``, the title, if the run ships with the page; ``share``, for the run's links and files, see
    `links.share`; ``charts``; ``machine``, where the speedup of a run that is over was measured; ``file``, the name of
    the file that a run was opened from.
    """
    rule = RULES.get(run.rule)  # a file may name one that this version does not know
    return message(
        "start",
        run=run_key,
        prompt=run.prompt.text,
        drafter=label(run.drafter) if run.drafter else None,
        num_draft_tokens=run.num_draft_tokens,
        greedy=run.sampling.greedy,
        sampling=asdict(run.sampling),
        pair=pair_line(run.pair),
        settings=settings_line(run),
        draws_like=rule.draws_like if rule else "token",
        lossy=rule is not None and not rule.lossless,
        coins=run.coins,
        vocab_size=run.pair.vocab_size,
        engine=run.engine,
        **fields,
    )


def rounds_message(
    run_key: str,
    rounds: Sequence[Round],
    vocabulary: Mapping[int, str],
    *,
    figures: Mapping[str, float | None] | None = None,
    sent: set[int] | None = None,
    charts: Charts | None = None,
) -> str:
    """The next rounds of a run.

    rounds: consecutive, in order; the first one's index is included.
    vocabulary: texts by token id (extra ones do no harm: only ids that these rounds mention are sent).
    sent: ids the component already knows; new ones are added to it. None sends every mentioned id.
    charts: those to redraw.
    """
    mentioned = {
        id
        for round_ in rounds
        for row in round_.top
        for pairs in (row.p, row.q, row.residual, row.p_raw, row.q_raw)
        for id, _ in pairs
    }
    mentioned.update(id for round_ in rounds for id, _, _ in round_.next.line)
    new = sorted(id for id in mentioned if id in vocabulary and (sent is None or id not in sent))
    if sent is not None:
        sent.update(new)
    return message(
        "rounds",
        run=run_key,
        first=rounds[0].index if rounds else None,
        rounds=[_round(round_) for round_ in rounds],
        vocabulary={id: vocabulary[id] for id in new},
        figures=figures,
        charts=charts,
    )


def end_message(
    run_key: str,
    *,
    total: int,
    reason: Said,
    figures: Mapping[str, float | None] | None = None,
    note: Said = "",
    charts: Charts | None = None,
    more: bool = False,
) -> str:
    """The run is over after `total` rounds. reason, note: sentences.

    more: it will be sent again for the same run, once the speedup has been measured.
    """
    return message("end", run=run_key, total=total, reason=reason, note=note, figures=figures, charts=charts, more=more)


def trace_message(parts: Sequence[str], *, share: Mapping[str, Any], charts: Charts) -> str:
    """A finished run in one message: its `opening`, one `rounds_message` and its `end_message`.

    One message, because a component sees only the last of several values that arrive at once.
    """
    rest = message("trace", share=share, charts=charts)
    # The parts are JSON already; parsing and writing a long run's again would take half a second.
    return f'{rest[:-1]},"parts":[{",".join(parts)}]}}'


def race_message(plain: Run, speculative: Run, comparison: Mapping[str, Any]) -> str:
    """Both lanes of a finished race and how they compare.

    comparison: ``{"speedup": float | None, "low": float, "high": float, "busy": bool, "greedy": bool, "identical": bool
    | None, "parting": None | {"position": int, "plain": str, "speculative": str, "margin": float, "half_precision":
    bool}}``; see `Duel.outcome`. position counts emitted tokens from 0, and margin is the log-probability gap between
    the target's two best tokens there.
    """
    return message(
        "race",
        prompt=plain.prompt.text,
        passes=speculative.pair.passes,
        made=joined([f"γ = {speculative.num_draft_tokens}", settings_line(speculative), pair_line(speculative.pair)]),
        lanes=[_lane(plain, ""), _lane(speculative, label(speculative.drafter))],
        comparison=comparison,
    )


def token_sources(round_: Round) -> list[str]:
    """Where each emitted token came from: ``accepted``, ``recovered``, ``bonus`` or ``plain`` (nothing was drafted)."""
    last = "plain" if not round_.drafted else round_.next.kind
    accepted = round_.accepted
    return ["accepted" if i < accepted else last for i in range(len(round_.emitted))]


def _lane(run: Run, label: Said) -> dict[str, Any]:
    counts = tally(run.rounds)
    sources = (source for round_ in run.rounds for source in token_sources(round_))
    return {
        "label": label,
        "times": [float(f"{seconds:.6f}") for seconds in emission_times(run.rounds)],
        "counts": [len(round_.emitted) for round_ in run.rounds],
        "pieces": [piece for round_ in run.rounds for piece in round_.pieces],
        "sources": "".join(SOURCE_LETTERS[source] for source in sources),
        "tokens": counts.tokens,
        "target_passes": counts.rounds,
        "tokens_per_second": counts.tokens_per_second,
    }


def _round(round_: Round) -> dict[str, Any]:
    """A round as in the trace file, without phase times (the charts show those)."""
    message: dict[str, Any] = {
        "index": round_.index,
        "drafted": [_drafted(token) for token in round_.drafted],
        "next": {
            "id": round_.next.id,
            "text": round_.next.text,
            "kind": round_.next.kind,
            "u": _exact(round_.next.u),
            "prob": _exact(round_.next.prob),
            "below": _exact(round_.next.below),
            "line": [list(piece) for piece in round_.next.line],
        },
        "emitted": list(round_.emitted),
        "pieces": list(round_.pieces),
        "top": [
            _candidates(row, round_.next.u is None) if sent else {"p": []}
            for row, sent in zip(round_.top, _rows_sent(round_))
        ],
        "seconds": round_.seconds and _short(round_.seconds.total),
    }
    rare = {name: value for name in ("stop_reason", "dropped", "read_again") if (value := getattr(round_, name))}
    if round_.choice is not None:
        rare["choice"] = asdict(round_.choice)
    return message | rare | _those_there(round_, "confidence", "distance")


def _rows_sent(round_: Round) -> list[bool]:
    """Which rows of candidates are sent: all of a chain; of a tree, those on the accepted path.

    A tree has rows for every branch that was cut, several times what anybody looks at; the trace file keeps them.
    """
    if all(token.parent == place - 1 for place, token in enumerate(round_.drafted)):
        return [True] * len(round_.top)
    return [True, *(token.outcome == "accepted" for token in round_.drafted)]


def _drafted(token: DraftedToken) -> dict[str, Any]:
    figures = {name: _exact(getattr(token, name)) for name in ("p", "q", "p_raw", "q_raw", "u", "accept_prob")}
    # Which tokens of its draft did not pass, another engine may not say.
    text = "?" if token.id is None and token.outcome != "accepted" else token.text
    message = {"id": token.id, "text": text, "parent": token.parent, "outcome": token.outcome} | figures
    if token.source is not None:
        message["source"] = token.source
    return message | _those_there(token, "p_left")


def _those_there(record: Round | DraftedToken | Candidates, *names: str) -> dict[str, float | None]:
    return {name: _exact(value) for name in names if (value := getattr(record, name)) is not None}


def _candidates(row: Candidates, greedy: bool) -> dict[str, Any]:
    """A row's lists. Greedy p and q are 0 or 1 and say little, so the models' own are added."""
    lists = {"p": row.p, "q": row.q, "residual": row.residual}
    if greedy:
        lists |= {"p_raw": row.p_raw, "q_raw": row.q_raw}
    # Where a token was rejected, readers recompute the residual from p and q.
    digits = _exact if row.residual else _short
    row_lists = {name: [[id, digits(value)] for id, value in pairs] for name, pairs in lists.items() if pairs}
    allowed = {} if row.allowed is None else {"allowed": row.allowed}
    return row_lists | allowed | _those_there(row, "reach", "allowed_mass")


def _exact(value: float | None) -> float | None:
    """Nine significant digits: enough to tell any two float32 values apart."""
    return None if value is None else float(f"{value:.9g}")


def _short(value: float) -> float:
    """For bars, which are not recomputed; nonzero stays nonzero. A long trace has 250,000 of them."""
    return round(value, 5) or value


def as_json(message: Mapping[str, Any]) -> str:
    text = json.dumps(message, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    # Gradio looks for tags in an HTML component's value; ours is data. JSON strings may hold any escape.
    # A lone surrogate in a pasted prompt could not be sent as UTF-8.
    return text.replace("<", "\\u003c").encode("utf-8", "replace").decode("utf-8")
