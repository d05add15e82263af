"""Two rules judging the same drafts with the same coins."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from specviz.decoding.engine import rounds
from specviz.decoding.judging import decided_by, judge_of, judged_as
from specviz.decoding.request import Request, fitting_rule
from specviz.decoding.round_record import Unrecorded
from specviz.records.errors import SpecvizError
from specviz.records.runs import Round, Seconds
from specviz.rules.draft import Draft, Rule, Uniforms, Verdict


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
    if request.branches > 1 and other.paths != request.rule.paths:
        raise SpecvizError(
            "Siblings and whole paths are drawn differently: these are different drafts of a tree.", "rule"
        )
    return _replay(request, other)


def _replay(request: Request, other: Rule) -> Iterator[tuple[Round, Round]]:
    judge, heard = judge_of(request, request.rule), []

    def overheard(draft: Draft, logits: Tensor, uniforms: Uniforms) -> Verdict:
        heard.append(judge(draft, logits, uniforms))
        return heard[-1]

    for one in rounds(request, judge=overheard):
        yield one, _judged_by(other, request, one.index, heard.pop())


@torch.inference_mode()
def _judged_by(rule: Rule, request: Request, index: int, one: Verdict) -> Round:
    rows, _ = one.details()
    judged = judged_as(one.draft, rows, one.uniforms, decided_by(request, rule)(one.draft, rows, one.uniforms))
    untimed = Seconds(0.0, 0.0, 0.0, 0.0, 0.0)
    return Unrecorded(judged, request.pair.texts, rule, index, judged.tokens, (), untimed).record()
