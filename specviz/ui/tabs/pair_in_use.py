"""The pair in use, on the Models tab: its sizes, precision and passes, notes on them, and a check of all of it."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from specviz.passes.roles import DRAFT, TARGET, Role
from specviz.records.errors import SpecvizError
from specviz.records.words import Bytes, Sentence, Words, with_units
from specviz.ui.components import as_text
from specviz.ui.device import PairName, Stage
from specviz.ui.runner import Batches, Runner, closing
from specviz.views.labels import parameters

if TYPE_CHECKING:
    from specviz.bench.equal_texts import Finding
    from specviz.models.pair import ModelPair
    from specviz.parts.reading import TrainedPart

#: Tokens of the pass that is compared with a pass over one: a round of four draft tokens.
COMPARED = 5


def describe(pair: ModelPair, stage: Stage, say: Words) -> str:
    """A table, as Markdown: each part's size, precision and passes, and the times of the target's; below it the step of
    preparing passes."""
    titles = ("part", "size", "precision", "runs_on", "one", "five")
    rows = [[say(f"models.{title}") for title in titles], ["---"] * len(titles), *_rows(pair, say)]
    lines = [f"| {' | '.join([*row, *['–'] * (len(titles) - len(row))])} |" for row in rows]
    if stage.step is not None:
        lines += ["", as_text(say("models.preparing", step=say.step(stage.step)))]
    return "\n".join(lines)


def _rows(pair: ModelPair, say: Words) -> Iterator[list[str]]:
    from specviz.models.placement import dtype_name

    info, times = pair.info(), pair.passes.seconds_by_width
    parts = [(TARGET, info.target, info.target_parameters, info.dtype)]
    if pair.draft is not None:
        parts.append((DRAFT, info.draft or "", info.draft_parameters or 0, dtype_name(pair.draft.dtype)))
    for drafter, part in pair.parts.items():
        parts.append((Role(drafter), part.method, sum(weight.numel() for weight in part.parameters()), info.dtype))
    for role, name, size, dtype in parts:
        label = role_names([role], say) if role.is_model else say(f"ways.{role}")
        stored, passes = pair.stored.get(role.kind), pair.passes.fast.get(role)
        row = [
            f"{label} **{as_text(name)}**{_states(pair.parts.get(role.kind), say)}" if name else label,
            say.translated(parameters(size)),
            dtype if stored is None else say("models.unpacked", dtype=dtype, stored=as_text(stored)),
            say(f"models.on_{'plain' if passes is None or passes.refusal is not None else passes.kind}"),
        ]
        if role == TARGET and COMPARED in times:
            row += [
                f"{say.number(1000 * times[1], '.1f')}\u00a0ms",
                f"{say.number(times[COMPARED] / times[1], '.2f')}×",
            ]
        yield row
    for bits, quantised in list(pair.passes.quantised.items()):  # a run may add another one
        kind = "plain" if quantised.passes is None else quantised.passes.kind
        precision = say("generate.bits", value=bits)
        yield [
            role_names([Role.quantised(bits)], say),
            with_units(str(Bytes(quantised.bytes))),
            precision,
            say(f"models.on_{kind}"),
        ]


def _states(part: TrainedPart | None, say: Words) -> str:
    """Which of the target's hidden states a published part reads, to follow its format; empty for a model."""
    if part is None:
        return ""
    return f", {say('models.states', n=len(part.feature_layers), states=', '.join(map(str, part.feature_layers)))}"


def notes(pair: ModelPair, stage: Stage, say: Words) -> str:
    """How the passes were timed, which rows are alike, and why nothing faster runs: a list, as Markdown."""
    from specviz.models.memory_share import memory_share

    fast = pair.passes.fast
    lost = {role: passes.refusal for role, passes in fast.items() if passes.refusal is not None}
    lines = [say("models.timed")]
    # New passes are in use a little before they have been timed.
    share = None if stage.step else memory_share(pair)
    if isinstance(share, SpecvizError):
        lines.append(say("models.no_share", reason=as_text(say.error(share))))
    elif share is not None:
        lines.append(say("models.share", share=as_text(say.step(share.sentence))))
    if threads := pair.passes.most_threads:
        lines.append(say("models.threads", count=threads))
    alike = [role for role, passes in fast.items() if passes.rows_are_alike and role not in lost]
    if TARGET in alike:
        lines.append(say("models.rows_alike", roles=role_names(alike, say)))
    refused: dict[tuple[str, str], list[Role]] = {}
    for role, reason in ({} if stage.step else stage.reasons | lost).items():
        # Where kernels of our own are in use, only something better still was refused.
        key = "models.unprepared" if role in lost or role not in fast else "models.no_better"
        refused.setdefault((key, as_text(say.error(reason))), []).append(role)
    for bits, quantised in list(pair.passes.quantised.items()):
        if quantised.passes is not None and quantised.passes.refusal is not None:
            why = as_text(say.error(quantised.passes.refusal))
            refused.setdefault(("models.no_better", why), []).append(Role.quantised(bits))
    lines += [say(key, roles=role_names(roles, say), reason=why) for (key, why), roles in refused.items()]
    return "\n".join(f"- {line}" for line in lines)


def role_names(roles: Iterable[Role], say: Words) -> str:
    """In words: ``target, draft model, exit after layer 2``. A part's heads are one."""
    return ", ".join(dict.fromkeys(say(f"passes.role_{role.kind}", n=role.number) for role in roles))


def check_pair(runner: Runner, name: PairName, halt: threading.Event, say: Words) -> Iterator[str]:
    """The findings so far, as Markdown, and the check in progress; once it is over, first what came of it."""
    from specviz.bench.check import summary

    findings: list[Finding] = []
    lines: list[str] = []
    step = say("common.preparing")
    yield step
    try:
        batches: Batches[Finding | Sentence] = runner.batches(name, _findings)
        for batch in closing(batches, halt):
            for event in batch:
                if isinstance(event, Sentence):
                    step = say("models.checking", step=say.step(event))
                else:
                    findings.append(event)
                    lines.append(_line_of(event, say))
            yield "\n".join([*lines, "", as_text(step)])
    except SpecvizError as error:
        lines += ["", say("models.problem", reason=as_text(say.error(error)))]
    else:
        stopped = [say("models.check_stopped")] if halt.is_set() else []
        lines = [" ".join([f"**{as_text(say.step(summary(findings, halt.is_set())))}**", *stopped]), "", *lines]
    yield "\n".join(lines)


def _findings(pair: ModelPair) -> Iterator[Finding | Sentence]:
    from specviz.bench.check import check_pair

    return check_pair(pair)


def _line_of(finding: Finding, say: Words) -> str:
    """A line of a list: the sign, the check, its result, and advice."""
    advice = "" if finding.advice is None else f" → {as_text(say.step(finding.advice))}"
    what = as_text(say.step(finding.what))
    return f"- {say(f'models.found_{finding.state}')} **{what}**: {as_text(say.reason(finding.seen))}{advice}"
