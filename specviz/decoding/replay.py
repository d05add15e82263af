"""Two rules judging the same drafts with the same coins."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from specviz.decoding.decoder import judge_of
from specviz.decoding.engine import rounds
from specviz.decoding.judged import Judged
from specviz.decoding.request import Request, fitting_rule
from specviz.decoding.round_record import Unrecorded
from specviz.records.errors import SpecvizError
from specviz.records.runs import Round, Seconds
from specviz.rules.base import Rule
from specviz.rules.draft import Decision, Draft, TargetRows, Uniforms


def replay(request: Request, rule: str) -> Iterator[tuple[Round, Round]]:
    """Each round of the request, and what `rule` makes of its draft.

    The text continues as the request's own rule decides, so both always judge the same draft. The other rule's round
    has no `pieces` and no times. Raises SpecvizError at once, with field ``rule``, if that rule does not fit the
    drafts.
    """
    if request.settings.drafter is None:
        raise SpecvizError("Plain decoding drafts nothing that two rules could judge: choose a drafter.", "drafter")
    other = fitting_rule(request.pair, request.settings, rule)
    if other.lossless != request.rule.lossless:
        raise SpecvizError("A lossy rule judges top choices, a lossless one draws: these are different drafts.", "rule")
    return _replay(request, other)


def _replay(request: Request, other: Rule) -> Iterator[tuple[Round, Round]]:
    decide, judged = judge_of(request, request.rule), []

    def overheard(draft: Draft, rows: TargetRows, uniforms: Uniforms) -> Decision:
        judged.append((draft, rows, uniforms))
        return decide(draft, rows, uniforms)

    for one in rounds(request, judge=overheard):
        yield one, _judged_by(other, request, one.index, *judged.pop())


@torch.inference_mode()
def _judged_by(rule: Rule, request: Request, index: int, draft: Draft, rows: TargetRows, uniforms: Uniforms) -> Round:
    judged = Judged.of(draft, judge_of(request, rule)(draft, rows, uniforms), rows, uniforms)
    untimed = Seconds(0.0, 0.0, 0.0, 0.0, 0.0)
    return Unrecorded(judged, request.pair.texts, rule, index, judged.tokens, (), untimed).record()
