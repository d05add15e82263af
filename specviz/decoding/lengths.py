"""How deep each round of a request drafts: γ, or a depth chosen in each round from what the pair's rounds showed."""

from collections.abc import Hashable
from dataclasses import replace

from specviz.decoding.request import Request
from specviz.passes.devices import agreed
from specviz.passes.static_passes import kind_of
from specviz.records.runs import Seconds
from specviz.rules.draft import Verdict, depth
from specviz.rules.exact import BLOCK, MULTI_PATH, TOKEN, TREE
from specviz.theory.draft_length import AdaptiveLength, DraftLength, Experience, FixedLength
from specviz.theory.roofline import pass_seconds

#: The time of a draft step that is assumed before the first one, as a share of a target pass: a small model's.
STEP = 1 / 8

#: The runs whose lengths are kept.
KEPT_RUNS = 128


def length_of(request: Request) -> DraftLength:
    """Decides how deep each round of a request drafts.

    What is learned stays with the pair's passes, for later runs. So do the lengths of sampled runs, whose texts depend
    on them: a run that is made once more, perhaps with a coin set by hand, begins with the same ones.
    """
    if not request.chooses_length:
        return FixedLength(request.num_draft_tokens)
    settings, passes = request.settings, request.pair.passes
    experience, chains = _experience(request), None
    if request.branches > 1 and request.drafter.narrows:
        rule = {TREE: TOKEN, MULTI_PATH: BLOCK}.get(request.rule, request.rule)  # what it is to a chain
        chains = _experience(replace(request, branches=1, rule=rule))
    if settings.sampling.greedy:
        return AdaptiveLength(experience, None, chains, request.depths)
    run: Hashable = (*_way(request), settings.seed, tuple(request.prompt.ids))
    passes.lengths[run] = passes.lengths.pop(run, [])
    if len(passes.lengths) > KEPT_RUNS:
        del passes.lengths[next(iter(passes.lengths))]
    return AdaptiveLength(experience, passes.lengths[run], chains, request.depths)


def _way(request: Request) -> tuple[Hashable, ...]:
    """How a request drafts."""
    settings = request.settings
    drafting = settings.drafter, replace(settings.drafting, branches=request.branches), request.num_draft_tokens
    return *drafting, settings.sampling, request.rule.name, kind_of(request.passes)


def _experience(request: Request) -> Experience:
    """What is known of this way to draft, which goes on."""
    known, way = request.pair.passes.experience, _way(request)
    if way not in known:
        known[way] = _expected(request)
    return known[way]


def learn(length: DraftLength, request: Request, verdict: Verdict, seconds: Seconds) -> None:
    """Tells what became of a round. Processes that share the target all go by the leader's clock."""
    typical: tuple[float, float] | None = None
    # The first draft reads the whole prompt, where later ones read new tokens.
    if request.chooses_length and not seconds.prefill:
        target = request.pair.target
        typical = agreed(seconds.draft, target), agreed(seconds.total - seconds.draft, target)
    length.observe(depth(verdict.draft.parents), len(verdict.path), typical)


def _expected(request: Request) -> Experience:
    """Before any round was timed: target passes as they were measured, and draft steps that take `STEP` of one."""
    deep = range(request.num_draft_tokens + 1)
    measured = request.pair.passes.seconds_by_width or {1: 1.0}
    target = pass_seconds(measured, [1 + request.drafter.largest_draft(depth, request.branches) for depth in deep])
    at_once = request.drafter.at_once or request.drafter.copies
    step = STEP * measured[min(measured)]
    return Experience([step * (min(depth, 1) if at_once else depth) for depth in deep], target)
