"""A real llama-server through the door: its rounds are its counters', and its samples are told from biased ones."""

import pytest

import specviz
from specviz.servers.answers import Ask
from specviz.servers.lossless import test_samples as samples_tested
from specviz.servers.references import TargetReference

PROMPT = "Once upon a time there was a little girl who lived in a"

#: The comma, which every thirteenth token is.
COMMA = 12


@pytest.fixture(scope="module")
def reference():
    return TargetReference(specviz.load_pair(device="cpu", dtype="float32", passes="plain"))


@pytest.mark.parametrize("part", ["eagle", "draft_model"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_rounds_equal_the_server_s_counters(part, temperature, llama_cpp):
    with llama_cpp(part) as port:
        watch = specviz.Server(f"localhost:{port}").watch(Ask(PROMPT, 96, temperature, seed=3))
        rounds = [round_ for round_ in watch if round_.drafted]
    drafted, accepted = sum(len(round_.drafted) for round_ in rounds), sum(round_.accepted for round_ in rounds)
    assert (watch.counted.passes, watch.counted.drafted, watch.counted.accepted) == (len(rounds), drafted, accepted)
    assert watch.run().text == watch.answer.text and not watch.together.inferred


def judged(llama_cpp, reference, *further, answers=200, **options):
    with llama_cpp("eagle", further=list(further)) as port:
        server = specviz.Server(f"localhost:{port}")
        *_, known = samples_tested(server, reference, answers=answers, budget=300.0, **options)
    return known


def test_samples_of_a_real_server_follow_its_target(llama_cpp, reference):
    known = judged(llama_cpp, reference, answers=120)
    assert known.verdict == "consistent", str(known.sentence)
    assert known.answers == 120 and known.greedy.gap <= 0.25


def test_a_pair_is_its_own_reference(llama_cpp, reference):
    with llama_cpp("eagle") as port:
        known = specviz.Server(f"localhost:{port}").lossless(reference.pair, answers=40, budget=300.0)
    assert (known.verdict, known.reference, known.answers) == ("consistent", "target", 40)


def test_a_bias_of_one_token_is_found_and_named(llama_cpp, reference):
    known = judged(llama_cpp, reference, "--logit-bias", f"{COMMA}+0.7")
    assert known.verdict == "differs" and known.p_value < 1e-6
    assert reference.text(COMMA) in str(known.most_off)


def test_the_server_s_own_samplers_are_named_and_no_wrong_rule(llama_cpp, reference):
    known = judged(llama_cpp, reference, answers=80, neutral=False)
    assert known.verdict == "truncated" and {"top_k", "top_p", "min_p"} & known.filters.keys()
