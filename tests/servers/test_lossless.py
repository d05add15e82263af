"""The verdict on a server's samples: right servers are consistent, wrong ones differ, filters are named, and nothing is
claimed of what is not known."""

import threading
import time
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import numpy
import pytest
from replayed import recorded

from specviz.records.errors import SpecvizError
from specviz.records.settings import SamplingParams
from specviz.servers.answers import Answer, Ask, Piece
from specviz.servers.connection import MOST_AT_ONCE
from specviz.servers.engine import About
from specviz.servers.lossless import test_samples as samples_tested
from specviz.servers.references import Law, OwnReference, Sample, SecondServer, TargetReference
from specviz.servers.server import Server

#: The model: the distribution of the next token after each one; the last token ends a text.
SIZE, END = 30, 29
LOGITS = numpy.random.default_rng(1).normal(size=(SIZE, SIZE)) * 1.5
LOGITS[:, END] = -1.0


def probs_of(logits):
    probs = numpy.exp(logits - logits.max(-1, keepdims=True))
    return probs / probs.sum(-1, keepdims=True)


@dataclass
class ModelServer:
    """Draws from the model, each answer from its own seed, unless something is done to its logits."""

    logits: numpy.ndarray = field(default_factory=lambda: LOGITS)
    names_ids: bool = True
    fails_after: int = 10**9
    greedily: float | numpy.ndarray = 0.0  # is added where nothing is drawn
    asked: list[Ask] = field(default_factory=list)

    def __post_init__(self):
        self.probs = probs_of(self.logits)
        self.engine = SimpleNamespace(
            name="llama.cpp",
            names_ids=self.names_ids,
            takes_ids=True,
            names_end=False,
            tokenise=lambda prompt: (0,),
            samplers_in=lambda answer: None,
            answer=self.answer,
        )

    def about(self):
        return About("llama.cpp", "http://here", "b1", slots=2)

    def answer(self, ask):
        self.asked.append(ask)
        if len(self.asked) > self.fails_after:
            raise SpecvizError(
                "The connection to {server} broke: {reason}. Was it restarted?", "server", server="", reason=""
            )
        generator, ids = numpy.random.default_rng(ask.seed), [0]
        while len(ids) <= ask.max_new_tokens:
            probs = self.probs[ids[-1]]
            ids.append(int(generator.choice(SIZE, p=probs) if ask.temperature else (probs + self.greedily).argmax()))
            if ids[-1] == END:
                return Answer(ask, [Piece(0.0, "", tuple(ids[1:-1]), end="end")])  # as llama.cpp: without its end token
        return Answer(ask, [Piece(0.0, "", tuple(ids[1:]), end="length")])


class ModelPair:
    """As much of a pair as a reference needs."""

    texts = SimpleNamespace(chip=lambda id: f"t{id}")

    device, vocab_size, eos_ids, target_name = "cpu", SIZE, frozenset({END}), "model"

    def encode(self, prompt):
        return SimpleNamespace(ids=(0,))

    def target(self, read, logits_to_keep, use_cache):
        import torch

        return SimpleNamespace(logits=torch.tensor(LOGITS)[read[:, -logits_to_keep:]].float())


REFERENCE = TargetReference(ModelPair())


def judged_by(server, reference=REFERENCE, **options):
    *_, known = samples_tested(server, reference, answers=400, length=10, **options)
    return known


def test_a_right_server_is_consistent_and_the_answer_s_end_counts():
    known = judged_by(ModelServer())
    assert (known.verdict, known.over, known.answers) == ("consistent", True, 400)
    assert known.p_value >= 0.001 and abs(known.statistic) < 4
    assert "400 answers at temperature 1.0 show no difference" in str(known.sentence)


def test_without_the_ends_the_same_answers_would_be_called_wrong():
    """What makes the promise above: the test of this test."""
    server = ModelServer()
    answers = [server.answer(Ask("", 10, 1.0, seed)) for seed in range(2000)]
    from specviz.theory.sample_tests import SampleEvidence, together

    def judged(counting):
        evidence = SampleEvidence()
        samples = [Sample(answer.ids, answer.end == "end" and counting) for answer in answers]
        for rows in REFERENCE.rows((0,), samples, Law(SamplingParams(temperature=1.0))):
            evidence.add(rows)
        return together(evidence.tests())

    assert judged(True) >= 0.001 > judged(False)


@pytest.mark.parametrize("change", ["bias", "temperature"])
def test_a_server_that_draws_from_something_else_differs(change):
    logits = LOGITS * 1.3 if change == "temperature" else LOGITS + 0.7 * (numpy.arange(SIZE) == 3)
    known = judged_by(ModelServer(logits))
    assert known.verdict == "differs" and known.p_value < 1e-6
    assert "are not drawn from the model's distribution" in str(known.sentence)
    assert change == "temperature" or "The token 't3' came" in str(known.most_off)


@pytest.mark.parametrize(("name", "value"), [("top_k", 5), ("top_k", 7), ("top_p", 0.7), ("min_p", 0.05)])
def test_a_filter_is_named_and_is_no_wrong_rule(name, value):
    import torch

    from specviz.rules.sampling import Warper

    probs = Warper(SamplingParams(temperature=1.0, **{name: value})).probabilities(torch.tensor(LOGITS))
    known = judged_by(ModelServer(torch.log(probs).clamp_min(-1e4).numpy()))
    assert known.verdict == "truncated" and known.filters == {name: value}
    assert f"{name.replace('_', '-')} {value}" in str(known.sentence)


def test_a_penalty_on_repetition_and_another_temperature_are_told_from_a_wrong_rule():
    class Penalised(ModelServer):
        def answer(self, ask):
            generator, ids = numpy.random.default_rng(ask.seed), [0]
            while len(ids) <= ask.max_new_tokens and END not in ids:
                logits = LOGITS[ids[-1]].copy()
                seen = sorted(set(ids))
                logits[seen] = numpy.where(logits[seen] > 0, logits[seen] / 1.3, logits[seen] * 1.3)
                greedy = ask.temperature == 0
                ids.append(int(logits.argmax() if greedy else generator.choice(SIZE, p=probs_of(logits))))
            ended = ids[-1] == END
            return Answer(
                ask, [Piece(0.0, "", tuple(ids[1 : -1 if ended else None]), end="end" if ended else "length")]
            )

    known = judged_by(Penalised())
    assert (known.verdict, known.filters) == ("truncated", {"repeat_penalty": 1.3})
    warmer = judged_by(ModelServer(LOGITS / 0.7))
    temperature = str(warmer.most_off).removeprefix("They fit temperature ").removesuffix(".")
    assert warmer.verdict == "differs" and abs(float(temperature) - 0.7) < 0.05


class OneToken(ModelServer):
    """Writes the same token whatever it is asked."""

    def answer(self, ask):
        self.asked.append(ask)
        return Answer(ask, [Piece(0.0, "", (5,) * ask.max_new_tokens, end="length")])


@pytest.mark.parametrize(("p", "verdict", "filters"), [(0.9, "truncated", {"top_k": 1}), (0.97, "differs", {})])
def test_of_a_server_that_always_writes_the_likeliest_token_no_temperature_is_known(p, verdict, filters, monkeypatch):
    """The lower a temperature, the better it fits: there is no best one."""
    sure = numpy.full((SIZE, SIZE), (1 - p) / (SIZE - 1))
    sure[:, 5] = p
    monkeypatch.setitem(globals(), "LOGITS", numpy.log(sure))
    *_, known = samples_tested(OneToken(), TargetReference(ModelPair()), answers=60, length=16)
    assert (known.verdict, known.filters) == (verdict, filters)
    assert "fit temperature" not in str(known.most_off)


class OneSeed(ModelServer):
    """Draws every answer with the same seed."""

    def answer(self, ask):
        return super().answer(replace(ask, seed=7))


def test_of_a_server_that_repeats_its_answers_it_is_said_that_it_follows_no_seed():
    known = judged_by(OneSeed())
    assert known.verdict == "differs"
    assert str(known.most_off).startswith("Different answers: 1 of 400.")


def test_a_bias_that_a_sample_hardly_shows_is_not_explained_away():
    """Of settings that are fitted some make any sample a little likelier: here, at the fifth, a temperature of 0.96."""
    for seed in range(0, 5000, 1000):
        known = judged_by(ModelServer(LOGITS + 0.4 * (numpy.arange(SIZE) == 3)), seed=seed)
        assert known.verdict == "differs" and "The token 't3' came" in str(known.most_off)


def test_the_temperature_that_was_asked_for_is_the_one_that_is_judged():
    assert judged_by(ModelServer(LOGITS / 0.7), temperature=0.7).verdict == "consistent"


def test_requests_are_neutral_seeded_one_by_one_and_give_the_prompt_by_its_tokens():
    server = ModelServer()
    judged_by(server, seed=5)
    drawn = [ask for ask in server.asked if ask.temperature]
    assert sorted(ask.seed for ask in drawn) == list(range(5, 405))
    assert {(ask.prompt, ask.temperature, ask.neutral, ask.max_new_tokens) for ask in drawn} == {((0,), 1.0, True, 10)}


def test_a_greedy_text_that_is_not_the_model_s_is_told_from_a_near_tie():
    right = judged_by(ModelServer())
    assert (right.greedy.off, right.greedy.gap, right.verdict) == (0, 0.0, "consistent")
    tied = judged_by(ModelServer(greedily=0.02 * numpy.random.default_rng(2).normal(size=SIZE)))
    wrong = judged_by(ModelServer(greedily=numpy.arange(SIZE) == 3))
    assert (tied.verdict, wrong.verdict) == ("consistent", "differs") and wrong.greedy.gap > 0.25 >= tied.greedy.gap
    assert "rounding does not explain" in str(wrong.most_off)


def test_nothing_is_claimed_of_what_is_not_known():
    silent = judged_by(ModelServer(names_ids=False))
    assert (silent.verdict, silent.p_value) == ("unknown", None) and "does not say which tokens" in str(silent.sentence)
    *_, few = samples_tested(ModelServer(), REFERENCE, answers=10, length=10)
    assert few.verdict == "unknown" and "too few" in str(few.sentence)
    before = next(samples_tested(ModelServer(), REFERENCE))
    assert (before.verdict, before.answers) == ("unknown", 0), "a verdict is made once"


def test_another_model_s_tokens_are_refused():
    class Smaller(ModelPair):
        vocab_size = 10

    with pytest.raises(SpecvizError, match="it serves another model"):
        judged_by(ModelServer(), TargetReference(Smaller()))


def test_a_second_server_without_speculation_is_a_reference():
    same = judged_by(ModelServer(), SecondServer(ModelServer()), seed=1)
    other = judged_by(ModelServer(), SecondServer(ModelServer(LOGITS + 0.7 * (numpy.arange(SIZE) == 3))))
    assert (same.reference, same.verdict, other.verdict) == ("second server", "consistent", "differs")


def test_vllm_s_own_log_probabilities_are_a_reference(replay):
    """Of the recorded answer, read back to the server: every token is among those listed, or one of the others."""
    engine = Server(replay("vllm_0_32_plain").url).engine
    assert engine.tokenise("Once upon a time there was a little girl who lived in a")[:2] == (2165, 323)
    with pytest.raises(SpecvizError, match="temperature 1"):
        next(OwnReference(engine).rows((0,), [Sample((1,))], Law(SamplingParams(temperature=0.5))))


def test_a_vllm_that_keeps_its_log_probabilities_to_itself_is_a_sentence(replay):
    engine = Server(replay("vllm_0_32_plain").url).engine
    engine.log_probs_of = lambda ids: []
    with pytest.raises(SpecvizError, match="gives no log probabilities"):
        next(OwnReference(engine).rows((0,), [Sample((1,))], Law(SamplingParams(temperature=1.0))))


def test_no_more_is_asked_at_once_than_there_are_connections():
    server = ModelServer()
    most, at_once, lock = 0, 0, threading.Lock()
    draw = server.engine.answer

    def answer(ask):
        nonlocal most, at_once
        with lock:
            at_once += 1
            most = max(most, at_once)
        time.sleep(0.02)
        with lock:
            at_once -= 1
        return draw(ask)

    server.engine.answer = answer
    server.about = lambda: About("llama.cpp", "http://here", "b1", slots=2048)
    judged_by(server)
    assert 2 < most <= MOST_AT_ONCE


def test_an_engine_without_log_probabilities_of_prompts_says_what_else_would_do(replay):
    """Before a single answer is drawn. So does a vLLM whose /tokenize a proxy does not pass on: its answers would be
    judged as if nothing stood before them."""
    for recording, said in (("llama_cpp_b10434_plain", "no log probabilities"), ("vllm_0_32_plain", "/tokenize")):
        server = Server(replay([one for one in recorded(recording) if one.path != "/tokenize"]).url)
        *_, known = samples_tested(server, OwnReference(server.engine))
        assert (known.verdict, known.answers, known.over) == ("unknown", 0, True)
        assert said in known.sentence and "name the model that it serves" in known.sentence


def test_a_greedy_answer_that_is_not_the_model_s_does_not_make_its_samples_wrong():
    known = judged_by(ModelServer(greedily=3.0 * (numpy.arange(SIZE) == 5)))
    assert known.verdict == "differs" and "show no difference" in known.sentence
    assert "the answer at temperature 0 is not the model's" in str(known.most_off)


def test_what_was_drawn_before_a_break_or_a_stop_is_judged():
    broken = judged_by(ModelServer(fails_after=200))
    assert (broken.verdict, broken.answers) == ("consistent", 199) and "broke" in str(broken.broken)
    seen = []
    for known in samples_tested(ModelServer(), REFERENCE, answers=2000, length=10, halted=lambda: len(seen) > 5):
        seen.append(known)
    assert seen[-1].over and 40 < seen[-1].answers < 400 and seen[-1].verdict == "consistent"
    with pytest.raises(SpecvizError, match="broke"):
        judged_by(ModelServer(fails_after=0))
