"""The pair in use, as the Models tab shows it: a table of its parts, and notes on what runs them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from specviz.records.words import Bytes, Words
from specviz.ui.background import Stage
from specviz.ui.components import as_text
from specviz.views.run_messages import parameters

if TYPE_CHECKING:
    from specviz.models.pair import ModelPair

#: Tokens of the pass that is compared with a pass over one: a round of four draft tokens.
COMPARED = 5

#: Of what is not measured.
_NONE = "–"


def describe(pair: ModelPair, stage: Stage, say: Words) -> str:
    """A table, as Markdown: each part with its size, its precision, what runs it and, of the target, what passes take;
    below it what is being prepared."""
    titles = ("part", "size", "precision", "runs_on", "one", "five")
    rows = [[say(f"models.{title}") for title in titles], ["---"] * len(titles), *_rows(pair, say)]
    lines = [f"| {' | '.join(row)} |" for row in rows]
    if stage.step is not None:
        lines += ["", as_text(say("models.preparing", step=say.step(stage.step)))]
    return "\n".join(lines)


def _rows(pair: ModelPair, say: Words) -> Iterator[list[str]]:
    from specviz.models.placement import dtype_name
    from specviz.passes.mtp_layers import MtpModules

    info, times = pair.info(), pair.passes.seconds_by_width
    measured = [_NONE, _NONE]
    if COMPARED in times:
        measured = [f"{say.number(1000 * times[1], '.1f')} ms", f"{say.number(times[COMPARED] / times[1], '.2f')}×"]
    yield _row(pair, "target", info.target, info.target_parameters, info.dtype, measured, say)
    if pair.draft is not None:
        dtype = dtype_name(pair.draft.dtype)
        yield _row(pair, "draft", info.draft or "", info.draft_parameters or 0, dtype, [_NONE, _NONE], say)
    for name, part in pair.parts.items():
        model = part.model if isinstance(part, MtpModules) else part
        size = sum(weight.numel() for weight in model.parameters())
        yield _row(pair, name, "", size, info.dtype, [_NONE, _NONE], say)
    for bits, made in pair.passes.quantised.items():
        kind = "plain" if made.passes is None else made.passes.kind
        yield [
            _roles([f"quantised {bits}"], say),
            str(Bytes(made.bytes)),
            say("generate.bits", value=bits),
            say(f"models.on_{kind}"),
            _NONE,
            _NONE,
        ]


def _row(pair: ModelPair, role: str, name: str, size: int, dtype: str, measured: list[str], say: Words) -> list[str]:
    label = say(f"ways.{role}") if role in pair.parts else _roles([role], say)
    stored = pair.stored.get(role)
    precision = dtype if stored is None else say("models.unpacked", dtype=dtype, stored=as_text(stored))
    passes = pair.passes.fast.get(role)
    kind = "plain" if passes is None or passes.refusal is not None else passes.kind
    title = f"{label} **{as_text(name)}**" if name else label
    return [title, say.spoken(parameters(size)), precision, say(f"models.on_{kind}"), *measured]


def notes(pair: ModelPair, stage: Stage, say: Words) -> str:
    """How the passes were timed, what is alike in them, and why nothing faster runs: a list, as Markdown."""
    fast = pair.passes.fast
    lost = {role: passes.refusal for role, passes in fast.items() if passes.refusal is not None}
    lines = [say("models.timed")]
    if pair.passes.threads:
        lines.append(say("models.threads", count=pair.passes.threads))
    alike = [role for role, passes in fast.items() if passes.rows_are_alike and role not in lost]
    if "target" in alike:
        lines.append(say("models.rows_alike", roles=_roles(alike, say)))
    refused: dict[tuple[str, str], list[str]] = {}
    for role, reason in ({} if stage.step else stage.reasons | lost).items():
        # Where kernels of our own are in use, only something better still was refused.
        key = "models.unprepared" if role in lost or role not in fast else "models.no_better"
        refused.setdefault((key, as_text(say.error(reason))), []).append(role)
    for bits, made in pair.passes.quantised.items():
        if made.passes is not None and made.passes.refusal is not None:
            reason = as_text(say.error(made.passes.refusal))
            refused.setdefault(("models.no_better", reason), []).append(f"quantised {bits}")
    lines += [say(key, roles=_roles(roles, say), reason=reason) for (key, reason), roles in refused.items()]
    return "\n".join(f"- {line}" for line in lines)


def _roles(roles: Iterable[str], say: Words) -> str:
    """Roles of `PairPasses.fast` in words: ``target, draft model, exit after layer 2``."""
    named = (role.partition(" ") for role in roles)
    return ", ".join(say(f"passes.role_{kind}", n=number) for kind, _, number in named)
