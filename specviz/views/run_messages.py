"""From records to the JSON messages that the page's components receive: what is new, nothing twice.

Components keep their own state, so a message's size depends only on the rounds it carries, not on earlier ones.
A run's messages name the run, and `rounds` gives its first round's index, so a component can tell if it missed one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from specviz.bench.contestants import Contestant
from specviz.drafters import DRAFTERS
from specviz.records.metrics import emission_times, tally
from specviz.records.runs import Candidates, DraftedToken, PairInfo, Round, Run, Speedup
from specviz.records.settings import PLAIN, SamplingParams
from specviz.records.words import Words
from specviz.views.charts import Trail

#: Figures as JSON-ready values, by position on the page (specviz.views.charts).
Charts = Mapping[int, dict[str, Any]]

#: The headline figures, in page order; each is a number or None (shown as a dash, never guessed).
FIGURES = (
    "acceptance_length",
    "acceptance_rate",
    "tokens_per_second",
    "speedup",
    "speedup_low",
    "speedup_high",
    "tokens",
    "target_passes",
)

#: In the race, one letter per token: where it came from.
SOURCE_LETTERS = {"accepted": "a", "recovered": "r", "bonus": "b", "plain": "p"}


def label(name: str | None, say: Words) -> str:
    """What the page calls a drafter; a name that only an opened file knows is shown as it is.

    Plain decoding, PLAIN or None, is called so where it is one way among others, rather than the choice of no drafter.
    """
    if name in (None, PLAIN):
        return say("ways.plain_label")
    return say(f"ways.{name}") if name in DRAFTERS else name


def title(contestant: Contestant, say: Words) -> str:
    """A contestant in words, with what differs from a chain judged token by token."""
    parts = [label(contestant.mode, say)]
    if contestant.num_draft_tokens is not None:
        parts.append(f"γ = {contestant.num_draft_tokens}")
    if contestant.branches not in (None, 1):
        parts.append(say("generate.branches", n=contestant.branches))
    if contestant.rule not in ("auto", "token", "tree"):
        parts.append(say(f"ways.rule_{contestant.rule}"))
    return ", ".join(parts)


def settings_of(run: Run, say: Words) -> str:
    """How it was made, apart from drafter and γ, in one line."""
    return settings_line(
        run.settings,
        drafter=run.drafter,
        rule=run.rule,
        sampling=run.sampling,
        seed=run.seed,
        coins=run.coins,
        passes=run.pair.passes,
        say=say,
    )


def opening(key: str, run: Run, say: Words, **others: Any) -> str:
    """The message that opens a run on the page. others: see `start_message`."""
    return start_message(
        key,
        prompt=run.prompt.text,
        drafter=label(run.drafter, say) if run.drafter else None,
        num_draft_tokens=run.num_draft_tokens,
        greedy=run.sampling.greedy,
        pair=pair_line(run.pair, say),
        settings=settings_of(run, say),
        rule=run.rule,
        coins=run.coins,
        **others,
    )


def headline(trail: Trail, measured: Speedup | None) -> dict[str, float | None]:
    """The headline figures; None is shown as a dash."""
    counts = trail.counts
    return {
        "acceptance_length": counts.acceptance_length,
        "acceptance_rate": counts.acceptance_rate,
        "tokens_per_second": counts.tokens_per_second,
        "speedup": measured and measured.ratio,
        "speedup_low": measured and measured.low,
        "speedup_high": measured and measured.high,
        "tokens": counts.tokens,
        "target_passes": counts.rounds,
    }


def start_message(
    run_key: str,
    *,
    prompt: str,
    drafter: str | None,
    num_draft_tokens: int | str,
    greedy: bool,
    pair: str = "",
    settings: str = "",
    rule: str = "token",
    recorded: str = "",
    share: Mapping[str, Any] | None = None,
    charts: Charts | None = None,
    timing: bool = False,
    machine: str | None = None,
    file: str = "",
    coins: str = "",
) -> str:
    """Clears the component and opens a run.

    drafter: its display name, None for plain decoding. settings: from `settings_line`. rule: the acceptance rule's
    name, which determines the wording of verdicts. recorded: the title, if the run ships with the page. share: for the
    run's links and files, see `links.share`. timing: rounds are timed before the first one, for γ = auto. machine:
    where the speedup of a run that is over was measured. file: the name of the file that a run was opened from. coins:
    those set by hand.
    """
    return as_json(
        {
            "kind": "start",
            "run": run_key,
            "prompt": prompt,
            "drafter": drafter,
            "num_draft_tokens": num_draft_tokens,
            "greedy": greedy,
            "pair": pair,
            "settings": settings,
            "rule": rule,
            "recorded": recorded,
            "share": share,
            "charts": charts,
            "timing": timing,
            "machine": machine,
            "file": file,
            "coins": coins,
        }
    )


def settings_line(
    settings: Mapping[str, int | float | str | bool | None],
    *,
    drafter: str | None,
    rule: str,
    sampling: SamplingParams,
    seed: int,
    passes: str,
    say: Words,
    coins: str = "",
) -> str:
    """How a run was made, apart from drafter and γ, in one line for its header.

    settings: the drafter's own (`Run.settings`), None where it decides; shows those needed to compare runs, the trace
        has them all.
    coins: those set by hand.
    drafter: None for plain decoding, which no rule judges. Greedy runs show no rule either: their drafts are matched.
    """
    parts = []
    # Lookahead's branches are the n-grams it tries.
    branches = settings.get("branches", settings.get("guesses"))
    if branches not in (None, 1):
        parts.append(say("generate.branches", n=branches))
    if settings.get("exit_layer") is not None:
        parts.append(say("generate.exit_layer", layer=settings["exit_layer"]))
    if settings.get("bits") is not None:
        parts.append(say("generate.bits", n=settings["bits"]))
    if settings.get("confidence"):
        parts.append(say("generate.confidence", confidence=settings["confidence"]))
    if drafter is not None and not sampling.greedy:
        # A file may name a rule unknown to this version.
        parts.append(say(f"generate.rule_{rule}") if f"generate.rule_{rule}" in say else rule)
    parts += [_sampling_words(sampling, say), say("generate.seed", value=seed)]
    if coins:
        parts.append(say("generate.coins", coins=coins))
    parts.append(passes_words(passes, say))
    return " · ".join(parts)


def pair_line(info: PairInfo, say: Words) -> str:
    """One line about a pair: name, sizes, device and precision."""
    known = {"name": info.name, "device": info.device, "dtype": info.dtype}
    known["target"] = parameters(info.target_parameters, say)
    if not info.draft_parameters:
        return say("page.pair", **known)
    return say("page.pair_with_draft", **known, draft=parameters(info.draft_parameters, say))


def parameters(count: int, say: Words) -> str:
    """So many parameters: ``135 M``, ``1.7 B``."""
    return f"{say.number(count / 1e9, '.1f')} B" if count >= 1e9 else f"{count / 1e6:.0f} M"


def passes_words(kind: str, say: Words) -> str:
    """What ran a run's target passes, see `PairInfo.passes`; unknown kinds from files are shown as is."""
    return say(f"passes.{kind}") if f"passes.{kind}" in say else kind


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
    mentioned = {id for round in rounds for row in round.top for pairs in _lists(row) for id, _ in pairs}
    mentioned.update(id for round in rounds for id, _, _ in round.next.line)
    new = sorted(id for id in mentioned if id in vocabulary and (sent is None or id not in sent))
    if sent is not None:
        sent.update(new)
    return as_json(
        {
            "kind": "rounds",
            "run": run_key,
            "first": rounds[0].index if rounds else None,
            "rounds": [_round(round) for round in rounds],
            "vocabulary": {id: vocabulary[id] for id in new},
            "figures": _figures(figures),
            "charts": charts,
        }
    )


def end_message(
    run_key: str,
    *,
    total: int,
    reason: str,
    figures: Mapping[str, float | None] | None = None,
    note: str = "",
    charts: Charts | None = None,
    more: bool = False,
) -> str:
    """The run is over after `total` rounds. reason: why, in a sentence. note: shown beside it.

    more: it will be sent again for the same run, once the speedup has been measured.
    """
    return as_json(
        {
            "kind": "end",
            "run": run_key,
            "total": total,
            "reason": reason,
            "note": note,
            "figures": _figures(figures),
            "charts": charts,
            "more": more,
        }
    )


def trace_message(parts: Sequence[str], *, share: Mapping[str, Any], charts: Charts) -> str:
    """A finished run in one message: its `start_message`, one `rounds_message` and its `end_message`.

    One message, because a component sees only the last of several values that arrive at once.
    """
    rest = as_json({"kind": "trace", "share": share, "charts": charts})
    # The parts are JSON already; parsing and writing a long run's again would take half a second.
    return f'{rest[:-1]},"parts":[{",".join(parts)}]}}'


def waiting_message(text: str) -> str:
    """Nothing runs yet, and why: a place in line, a model being loaded."""
    return as_json({"kind": "waiting", "text": text})


def left_message(text: str) -> str:
    """Nothing will run: who waited has left the line."""
    return as_json({"kind": "left", "text": text})


def error_message(text: str) -> str:
    """The run failed. What is on the screen stays."""
    return as_json({"kind": "error", "text": text})


def race_message(plain: Run, speculative: Run, comparison: Mapping[str, Any], *, drafter: str = "") -> str:
    """Both lanes of a finished race and how they compare. drafter: its display name.

    comparison: ``{"speedup": float | None, "low": float, "high": float, "busy": bool, "greedy": bool, "identical": bool
    | None, "parting": None | {"position": int, "plain": str, "speculative": str, "margin": float, "half_precision":
    bool}}``; see `Duel.outcome`. position counts emitted tokens from 0, and margin is the log-probability gap between
    the target's two best tokens there.
    """
    return as_json(
        {
            "kind": "race",
            "prompt": plain.prompt.text,
            "passes": speculative.pair.passes,
            "lanes": [_lane(plain, ""), _lane(speculative, drafter or speculative.drafter or "")],
            "comparison": dict(comparison),
        }
    )


def race_phase_message(text: str, fraction: float | None = None) -> str:
    """What the server is measuring right now, with the fraction done (0 to 1; None if unknown)."""
    return as_json({"kind": "phase", "text": text, "fraction": fraction})


def race_error_message(text: str) -> str:
    """The race could not be run."""
    return as_json({"kind": "error", "text": text})


def token_sources(round: Round) -> list[str]:
    """Where each emitted token came from: ``accepted``, ``recovered``, ``bonus`` or ``plain`` (nothing was drafted)."""
    last = "plain" if not round.drafted else round.next.kind
    accepted = round.accepted
    return ["accepted" if i < accepted else last for i in range(len(round.emitted))]


def _sampling_words(sampling: SamplingParams, say: Words) -> str:
    if sampling.greedy:
        return say("generate.greedy")
    words = [say("generate.temperature", value=say.number(sampling.temperature, "g"))]
    if sampling.top_k:
        words.append(say("generate.top_k", value=sampling.top_k))
    if sampling.top_p < 1:
        words.append(say("generate.top_p", value=say.number(sampling.top_p, "g")))
    if sampling.min_p:
        words.append(say("generate.min_p", value=say.number(sampling.min_p, "g")))
    return ", ".join(words)


def _lane(run: Run, label: str) -> dict[str, Any]:
    counts = tally(run.rounds)
    sources = (source for round in run.rounds for source in token_sources(round))
    return {
        "label": label,
        "times": [_clock(time) for time in emission_times(run.rounds)],
        "counts": [len(round.emitted) for round in run.rounds],
        "pieces": [piece for round in run.rounds for piece in round.pieces],
        "sources": "".join(SOURCE_LETTERS[source] for source in sources),
        "tokens": counts.tokens,
        "target_passes": counts.rounds,
        "tokens_per_second": counts.tokens_per_second,
    }


def _round(round: Round) -> dict[str, Any]:
    """A round as in the trace file, without phase times (the charts show those)."""
    message: dict[str, Any] = {
        "index": round.index,
        "drafted": [_drafted(token) for token in round.drafted],
        "next": {
            "id": round.next.id,
            "text": round.next.text,
            "kind": round.next.kind,
            "u": _exact(round.next.u),
            "prob": _exact(round.next.prob),
            "below": _exact(round.next.below),
            "line": [list(piece) for piece in round.next.line],
        },
        "emitted": list(round.emitted),
        "pieces": list(round.pieces),
        "top": [
            _row(row, round.next.u is None) if told else {"p": []} for row, told in zip(round.top, _told_rows(round))
        ],
        "seconds": _short(round.seconds.total),
    }
    if round.stop_reason is not None:
        message["stop_reason"] = round.stop_reason
    if round.dropped:
        message["dropped"] = round.dropped
    if round.confidence is not None:
        message["confidence"] = _exact(round.confidence)
    if round.distance is not None:
        message["distance"] = _exact(round.distance)
    if round.choice is not None:
        message["choice"] = asdict(round.choice)
    return message


def _told_rows(round: Round) -> list[bool]:
    """Which rows of candidates are sent: all of a chain; of a tree, those on the accepted path.

    A tree has rows for every branch that was cut, several times what anybody looks at; the trace file keeps them.
    """
    if all(token.parent == place - 1 for place, token in enumerate(round.drafted)):
        return [True] * len(round.top)
    return [True, *(token.outcome == "accepted" for token in round.drafted)]


def _drafted(token: DraftedToken) -> dict[str, Any]:
    message: dict[str, Any] = {
        "id": token.id,
        "text": token.text,
        "parent": token.parent,
        "p": _exact(token.p),
        "q": _exact(token.q),
        "p_raw": _exact(token.p_raw),
        "q_raw": _exact(token.q_raw),
        "u": _exact(token.u),
        "accept_prob": _exact(token.accept_prob),
        "outcome": token.outcome,
    }
    if token.p_left is not None:
        message["p_left"] = _exact(token.p_left)
    if token.source is not None:
        message["source"] = token.source
    return message


def _row(row: Candidates, greedy: bool) -> dict[str, Any]:
    """What a row shows: greedy p and q are 0 or 1 and say little, so the models' own stand beside them."""
    lists = {"p": row.p, "q": row.q, "residual": row.residual}
    if greedy:
        lists |= {"p_raw": row.p_raw, "q_raw": row.q_raw}
    # Where a token was rejected, readers recompute the residual from p and q.
    digits = _exact if row.residual else _short
    return {name: [[id, digits(value)] for id, value in pairs] for name, pairs in lists.items() if pairs}


def _lists(row: Candidates) -> tuple[tuple[tuple[int, float], ...], ...]:
    return row.p, row.q, row.residual, row.p_raw, row.q_raw


def _figures(figures: Mapping[str, float | None] | None) -> dict[str, float | None] | None:
    if figures is None:
        return None
    return {name: figures.get(name) for name in FIGURES}


def _exact(value: float | None) -> float | None:
    """Nine significant digits: enough to tell any two float32 values apart."""
    return None if value is None else float(f"{value:.9g}")


def _short(value: float) -> float:
    """For bars, which nobody recomputes; nonzero stays nonzero. A long trace has 250,000 of them."""
    return round(value, 5) or value


def _clock(seconds: float) -> float:
    return float(f"{seconds:.6f}")


def as_json(message: Mapping[str, Any]) -> str:
    text = json.dumps(message, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    # Gradio looks for tags in an HTML component's value; ours is data. JSON strings may hold any escape.
    # A lone surrogate in a pasted prompt could not be sent as UTF-8.
    return text.replace("<", "\\u003c").encode("utf-8", "replace").decode("utf-8")
