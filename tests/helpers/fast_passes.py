"""A pair's passes over static buffers, on our kernels and as graphs, without a compiler."""

import contextlib
import dataclasses

import pytest

import specviz
from specviz.decoding.engine import pending_rounds
from specviz.decoding.request import prepare
from specviz.models.pair import ModelPair
from specviz.models.pair_passes import PairPasses, feature_layers
from specviz.parts.head_passes import WithoutPass
from specviz.passes.cuda_graphs import WARM_UPS, GraphedPasses
from specviz.passes.fast_passes import FastPasses
from specviz.passes.kernels.few_rows import FewRows
from specviz.passes.reading_checks import check_exit
from specviz.passes.roles import DRAFT, TARGET, Role
from specviz.passes.states import keeps_state
from specviz.passes.static_passes import StaticPass
from specviz.records.errors import SpecvizError
from specviz.records.runs import Round
from specviz.records.settings import DraftParams, RunSettings, SamplingParams

#: Nearly a block of buffers.
PROMPT = [5, 9, 33, 7, 7, 20, 11, 3] * 6
GREEDY, SAMPLED = SamplingParams(temperature=0), SamplingParams(temperature=1, top_p=0.9)
#: Enough for the buffers to grow once.
NEW_TOKENS = 20


def replayed(function, examples):
    """Records as a CUDA graph does, on a CPU: warms up first; a replay reads the very tensors that were recorded."""
    inputs = [example.clone() for example in examples]
    for _ in range(WARM_UPS):
        function(*inputs)

    def replay(arguments):
        for own, given in zip(inputs, arguments, strict=True):
            own.copy_(given)
        return [output.clone() for output in function(*inputs)]

    return replay


def static_passes(pair: ModelPair, few_rows: FewRows | None = None) -> dict[Role, FastPasses]:
    if keeps_state(pair.target):
        target, statics = WithoutPass.of(pair.target, few_rows), {}
    else:
        target = StaticPass(pair.target, feature_layers(pair), few_rows)
        statics = {TARGET: target}
        with contextlib.suppress(SpecvizError):  # where later layers read the keys of earlier ones
            check_exit(pair.target, pair.target_name)
            statics[Role.exit(1)] = target.first_layers(1)
    if pair.draft is not None:
        statics[DRAFT] = StaticPass(pair.draft, (), few_rows)
    for part in pair.parts.values():
        statics |= {role: make(target) for role, make in part.statics().items()}
    return {role: FastPasses.unprepared(static) for role, static in statics.items()}


def kernel_passes(pair: ModelPair) -> dict[Role, FastPasses]:
    return static_passes(pair, FewRows.ready())


def graphed_passes(pair: ModelPair) -> dict[Role, GraphedPasses]:
    statics = {role: plain.static for role, plain in static_passes(pair).items() if plain.static.kv_shapes}
    passes = {role: GraphedPasses(static, replayed) for role, static in statics.items()}
    kept = passes[TARGET].kept_buffers if TARGET in passes else None
    shared = {role: GraphedPasses(static, replayed, kept) for role, static in statics.items() if static.shares_kv}
    return passes | shared


#: Kind of passes -> what makes them for a pair.
MAKERS = {"plain": lambda pair: {}, "static": static_passes, "kernels": kernel_passes, "graphs": graphed_passes}


def made_twice(pair: ModelPair, settings: RunSettings) -> tuple[list[Round], list[Round]]:
    """The rounds of a run over graphs: as the host makes them, and as they are launched ahead of it."""
    request = prepare(with_passes(pair, graphed_passes(pair)), settings)
    by_host, ahead = ([one.record() for one in pending_rounds(request, details=host)] for host in (True, False))
    assert request.passes[TARGET].whole_rounds, "nothing was launched"
    return by_host, ahead


def assert_same_decisions(one: Round, other: Round) -> None:
    assert one.emitted == other.emitted
    for token, again in zip(one.drafted, other.drafted, strict=True):
        facts = ((each.id, each.parent, each.outcome, each.source, each.u, each.draft_u) for each in (token, again))
        assert next(facts) == next(facts)
        assert (token.p, token.q) == pytest.approx((again.p, again.q), abs=1e-4)


def with_passes(pair: ModelPair, passes: dict[Role, FastPasses]) -> ModelPair:
    return dataclasses.replace(pair, passes=PairPasses(passes))


def tokens(pair: ModelPair, drafter: str | None, sampling: SamplingParams, branches: int | None = None) -> list[int]:
    """A run after `PROMPT`, by the passes that the pair has."""
    drafting = DraftParams(branches=branches)
    run = specviz.run(
        pair, PROMPT, drafter=drafter, sampling=sampling, max_new_tokens=NEW_TOKENS, seed=5, drafting=drafting
    )
    assert run.pair.passes == (pair.passes.fast[TARGET].kind if pair.passes.fast else "plain")
    return list(run.token_ids)
