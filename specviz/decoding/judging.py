"""Who judges a round: the rule, on whatever device; or the same in one call where our kernels run the target."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from specviz.decoding.request import Request
from specviz.passes.chains import JudgedChain
from specviz.rules.draft import Decision, Draft, Rule, TargetRows, Uniforms, Verdict
from specviz.rules.exact import BLOCK, MATCH, TOKEN
from specviz.rules.sampling import Warper
from specviz.rules.transfer import to_host

#: Judges a draft of n tokens by the target's logits [n + 1, vocab] and the round's coins.
Judge = Callable[[Draft, Tensor, Uniforms], Verdict]

#: The same, by the target's rows.
Decide = Callable[[Draft, TargetRows, Uniforms], Decision]


def by_rule(decide: Decide, warper: Warper) -> Judge:
    """Operation by operation; fetches what decoding needs in one transfer."""

    def judge(draft: Draft, logits: Tensor, uniforms: Uniforms) -> Verdict:
        rows = TargetRows.of(logits, warper)
        return judged_as(draft, rows, uniforms, decide(draft, rows, uniforms))

    return judge


def judged_as(draft: Draft, rows: TargetRows, uniforms: Uniforms, decision: Decision) -> Verdict:
    """A round with this decision."""
    parts = {"token": draft.tokens, "kept": decision.kept, "next": decision.next_token, "choice": rows.likeliest}
    host = to_host(parts)
    path = tuple([index for index, kept in enumerate(host["kept"]) if kept])
    tokens = (*[host["token"][index] for index in path], host["next"])
    wide = [rows.logits, rows.probs, decision.next_probs, decision.next_sums, decision.drawn_from]
    kept_bytes = bytes_of(draft) + sum(each.nbytes for each in wide if each is not None)
    return Verdict(path, tokens, tuple(host["choice"]), draft, uniforms, lambda: (rows, decision), kept_bytes)


def in_one_call(warper: Warper, rule: Rule) -> Judge:
    """Chains at a temperature and without filters, in C++: `TOKEN`, `BLOCK` and `MATCH`."""

    def judge(draft: Draft, logits: Tensor, uniforms: Uniforms) -> Verdict:
        made = JudgedChain(draft, logits, uniforms, warper.temperature_alone, rule is BLOCK)

        def judgement() -> tuple[TargetRows, Decision]:
            if warper.params.greedy:
                rows = TargetRows.of(logits, warper)
                return rows, MATCH.decide(draft, rows, uniforms)
            return TargetRows(logits, made.probs(), None, warper.changes_logits), made.decision()

        kept_bytes = bytes_of(draft) + logits.nbytes + made.bytes
        return Verdict(made.path, made.tokens, made.choices, draft, uniforms, judgement, kept_bytes)

    return judge


def bytes_of(draft: Draft) -> int:
    """Of what is as wide as the vocabulary."""
    return sum(wide.nbytes for wide in (draft.probs, draft.logits) if wide is not None)


def decided_by(request: Request, rule: Rule) -> Decide:
    """How a rule decides about this request's drafts: greedy ones are matched, whatever the rule."""
    return (MATCH if request.settings.sampling.greedy else rule).decide


def judge_of(request: Request, rule: Rule) -> Judge:
    """The quickest way that comes to the same."""
    warper, passes = Warper(request.settings.sampling), request.passes.get("target")
    chains = request.branches == 1 and (rule in (TOKEN, BLOCK) or warper.params.greedy)
    if chains and warper.temperature_alone is not None and passes is not None and passes.by_kernels:
        return in_one_call(warper, rule)
    return by_rule(decided_by(request, rule), warper)
