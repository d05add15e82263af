"""How deep each round of a request drafts: γ, or a depth chosen in each round from what the pair's rounds showed."""

from collections.abc import Hashable
from dataclasses import replace

from specviz.decoding.request import Request
from specviz.passes.fast_passes import kind_of
from specviz.records.runs import Seconds
from specviz.rules.draft import Verdict, draft_depth
from specviz.rules.exact import BLOCK, MULTI_PATH, TOKEN, TREE
from specviz.theory.draft_length import AdaptiveDepth, DepthPolicy, FixedDepth, History
from specviz.theory.roofline import pass_seconds

#: The time of a draft step assumed before any is timed, as a share of a target pass: that of a small model.
STEP = 1 / 8

#: How many histories are remembered, and the depths of how many sampled runs.
MOST_REMEMBERED = 128


def depth_policy(request: Request) -> DepthPolicy:
    """Decides how deep each round of a request drafts.

    Histories stay with the pair's passes, for later runs. So do the depths of sampled runs, whose texts depend on them:
    a run that is repeated, perhaps with a coin set by hand, begins with the same depths.
    """
    if not request.chooses_length:
        return FixedDepth(request.num_draft_tokens)
    settings, passes = request.settings, request.pair.passes
    history, chains = _history(request), None
    if request.branches > 1 and request.drafter.narrows:
        rule = {TREE: TOKEN, MULTI_PATH: BLOCK}.get(request.rule, request.rule)  # the same rule for chains
        chains = _history(replace(request, branches=1, rule=rule))
    if settings.sampling.greedy:
        return AdaptiveDepth(history, None, chains, request.depths)
    run: Hashable = (*_drafting_key(request), settings.seed, tuple(request.prompt.ids))
    passes.depths[run] = passes.depths.pop(run, [])
    if len(passes.depths) > MOST_REMEMBERED:
        del passes.depths[next(iter(passes.depths))]
    return AdaptiveDepth(history, passes.depths[run], chains, request.depths)


def _drafting_key(request: Request) -> tuple[Hashable, ...]:
    """Requests with the same key share a history."""
    settings = request.settings
    drafting = settings.drafter, replace(settings.drafting, branches=request.branches), request.num_draft_tokens
    return *drafting, settings.sampling, request.rule.name, kind_of(request.passes)


def _history(request: Request) -> History:
    """The history of rounds that were drafted like the request's; this run continues it."""
    histories, key = request.pair.passes.histories, _drafting_key(request)
    if key not in histories:
        histories[key] = _expected_history(request)
        if len(histories) > MOST_REMEMBERED:
            del histories[next(iter(histories))]
    return histories[key]


def learn(policy: DepthPolicy, request: Request, verdict: Verdict, seconds: Seconds) -> None:
    """Tells the policy what became of a round."""
    times: tuple[float, float] | None = None
    # The first draft reads the whole prompt, where later ones read new tokens.
    if request.chooses_length and not seconds.prefill:
        times = seconds.draft, seconds.total - seconds.draft
    policy.observe(draft_depth(verdict.parents), len(verdict.path), times)


def _expected_history(request: Request) -> History:
    """Assumed before any round is timed: target passes as measured, and draft steps that take `STEP` of a pass."""
    depths = range(request.num_draft_tokens + 1)
    measured = request.pair.passes.seconds_by_width or {1: 1.0}
    target = pass_seconds(measured, [1 + request.drafter.largest_draft(depth, request.branches) for depth in depths])
    at_once = request.drafter.at_once or request.drafter.copies
    step = STEP * measured[min(measured)]
    return History([step * (min(depth, 1) if at_once else depth) for depth in depths], target)
