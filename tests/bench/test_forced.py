"""A forced acceptance rate: the oracle is right as often as asked and changes no text."""

import itertools
import math
import pickle
from dataclasses import replace

import pytest
from refusal import refused
from tiny import InTurn, assert_same_rows, tiny_pair

from specviz.bench import forced as oracle
from specviz.bench.forced import measure_forced
from specviz.decoding import engine
from specviz.decoding.request import prepare
from specviz.drafters import DRAFTERS
from specviz.models.pair import ModelPair
from specviz.records.settings import RunSettings, SamplingParams

GREEDY = SamplingParams(temperature=0.0)
PROMPT = [5, 17, 60, 3, 41, 22]


@pytest.fixture
def uneven(monkeypatch):
    """Plain steps come between the drafts, as where γ is chosen in each round."""
    monkeypatch.setattr(engine, "depth_policy", lambda request: InTurn())


def ordered(pair, drafter="draft_model", gamma=4, tokens=60, **more):
    return prepare(
        pair,
        RunSettings(
            PROMPT, drafter=drafter, num_draft_tokens=gamma, **{"sampling": GREEDY} | more, max_new_tokens=tokens
        ),
    )


def written(done):
    return [token for one in done for token in one.emitted]


def answer(pair, tokens=60):
    return written(engine.rounds(ordered(pair, None, tokens=tokens)))


def test_the_oracle_is_right_as_often_as_asked_and_otherwise_says_any_other_token():
    known = [index % 50 for index in range(40_000)]
    said = oracle.script(known, 0.7, vocab_size=50, seed=1)
    right = [a == b for a, b in zip(said, known)]
    assert abs(sum(right) / len(right) - 0.7) < 4 * math.sqrt(0.7 * 0.3 / len(known))
    # Independently: as often after a right token as after a wrong one.
    after = [later for earlier, later in itertools.pairwise(right) if earlier]
    assert abs(sum(after) / len(after) - 0.7) < 4 * math.sqrt(0.7 * 0.3 / len(after))
    assert {(b - a) % 50 for a, b in zip(known, said)} == set(range(50)), "a wrong token can be every other one"
    assert said == oracle.script(known, 0.7, vocab_size=50, seed=1) != oracle.script(known, 0.7, 50, seed=2)
    assert oracle.script(known, 1.0, 50, seed=0) == known
    assert not any(a == b for a, b in zip(oracle.script(known, 0.0, 50, seed=0), known))


@pytest.mark.parametrize("gamma", [1, 4])
def test_measured_acceptance_is_the_probability_asked_for(pair, gamma):
    pair = replace(pair, eos_ids=frozenset())
    known, judged, accepted = answer(pair, 200), 0, 0
    for seed in range(6):
        for one in engine.rounds(ordered(pair, gamma=gamma, tokens=200), oracle.oracle(known, 0.75, seed)):
            judged, accepted = judged + one.judged, accepted + one.accepted
    assert judged > 500
    assert abs(accepted / judged - 0.75) < 4 * math.sqrt(0.75 * 0.25 / judged)


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("lengths", ["fixed", "uneven"])
def test_the_text_is_plain_decodings_whatever_the_oracle_says(pair, alpha, lengths, request):
    if lengths == "uneven":
        request.getfixturevalue("uneven")
    known = answer(pair)
    done = list(engine.rounds(ordered(pair), oracle.oracle(known, alpha, 3)))
    assert written(done) == known
    drafted = [token.outcome for one in done for token in one.drafted]
    assert drafted and (alpha == 0.5 or set(drafted) <= ({"accepted"} if alpha else {"rejected", "discarded"}))


def test_a_wrong_answer_costs_acceptance_and_never_the_text_and_beyond_it_nothing_is_drafted(pair):
    known = answer(pair)
    told = [*known[:20], *((token + 1) % 128 for token in known[20:])]
    done = list(engine.rounds(ordered(pair), oracle.oracle(told, 1.0, 0)))
    assert written(done) == known and len(done) > 5
    # Four accepted and one of the target's own a round, until the text leaves what the oracle was told.
    assert [len(one.emitted) for one in done[:4]] == [5] * 4 and len(done[4].emitted) == 1
    done = list(engine.rounds(ordered(pair), oracle.oracle(known[:10], 1.0, 0)))
    assert written(done) == known
    assert [len(one.drafted) for one in done[:3]] == [4, 4, 0] and not any(one.drafted for one in done[3:])


def test_the_draft_model_makes_every_pass_and_its_cache_holds_the_text(pair, uneven):
    known, made, passes = answer(pair), [], []
    told = oracle.oracle(known, 0.6, 5)

    def build(context):
        made.append(told(context))
        return made[0]

    hook = pair.draft.register_forward_pre_hook(lambda model, given: passes.append(1))
    committed, done = list(PROMPT), 0
    for one in engine.rounds(ordered(pair), build):
        committed += one.emitted
        # One for each token it drafts, and one for the prompt: what plain steps wrote is read with the next draft.
        assert len(passes) - done == len(one.drafted) + (one.index == 0)
        assert_same_rows(made[0].model, committed)
        done = len(passes)
    hook.remove()
    assert committed[len(PROMPT) :] == known


def test_the_oracle_cannot_be_asked_for_and_has_no_draws_to_replace(pair):
    assert oracle.OracleDrafter.name not in DRAFTERS
    with refused("drafter", "There is no drafter 'oracle'"):
        ordered(pair, "oracle")
    with pytest.raises(ValueError, match="greedy"):
        next(engine.rounds(ordered(pair, sampling=SamplingParams()), oracle.oracle([1, 2], 1.0, 0)))


# The measurement


def test_drafts_are_accepted_as_often_as_asked():
    pair = tiny_pair("llama", eos_token_id=None)
    # 42 tokens are no whole number of rounds of four: the last round is cut short, and does not count.
    for alpha, tokens_per_pass in ((0.0, 1.0), (1.0, 4.0)):
        *_, last = measure_forced(pair, alpha, 3, tokens=42, repeats=2)
        assert (last.alpha, last.num_draft_tokens, last.repeats, last.fraction) == (alpha, 3, 2, 1.0)
        assert last.figures.acceptance_rate == alpha
        assert last.figures.acceptance_length == tokens_per_pass
        assert last.figures.speedup_measured > 0 and last.figures.speedup_formula > 0
        assert pickle.loads(pickle.dumps(last)) == last
    *_, last = measure_forced(pair, 0.6, 3, tokens=60, repeats=8)
    assert 0.45 < last.figures.acceptance_rate < 0.75


def test_it_can_be_ended_between_rounds_and_tells_of_each_repeat():
    run = measure_forced(tiny_pair("llama"), 0.5, 2, tokens=12, repeats=3)
    shown = list(run)
    told = [one for one in shown if one is not None]
    assert [one.repeats for one in told] == [1, 2, 3, 3] and [one.fraction for one in told] == [1 / 3, 2 / 3, 1, 1]
    assert len(shown) > 10


@pytest.mark.parametrize(
    ("alpha", "gamma", "draft", "field"),
    [
        *((1.5, 4, True, "alpha"), ("x", 4, True, "alpha"), (0.5, 4, False, "drafter")),
        *((0.5, gamma, True, "num_draft_tokens") for gamma in (0, "x")),
    ],
)
def test_what_cannot_be_forced_names_its_field(pair, alpha, gamma, draft, field):
    with refused(field):
        next(measure_forced(pair if draft else ModelPair.of(pair.target, None, pair.tokenizer), alpha, gamma))
