"""Along a text: a rate that falls is told from chance, and a text that loops from one that comes back to its words."""

import json
import random
from dataclasses import replace

import pytest
from handmade import a_run, rounds_of

from specviz.foreign.doctor import Signs, examine
from specviz.foreign.metrics import read_metrics
from specviz.records.runs import LengthChoice
from specviz.records.words import LANGUAGES, words
from specviz.theory.along_texts import Pass, find_fall, flatters, looped
from specviz.theory.statistics import SIGNIFICANT
from specviz.views.remarks import remarks
from specviz.views.served_diagnosis import findings, signs_of

GAMMA = 4


def text(generator: random.Random, *rates: float) -> list[Pass]:
    """A pass for each rate, with a chain of `GAMMA`."""
    kept = [next((n for n in range(GAMMA) if generator.random() >= rate), GAMMA) for rate in rates]
    return [Pass(n, min(GAMMA, n + 1), n + 1) for n in kept]


# --- a rate that falls ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("passes", [40, 200])
def test_a_constant_rate_is_called_no_more_often_than_promised(passes, monkeypatch):
    generator = random.Random(passes)
    texts = [text(generator, *[generator.uniform(0.4, 0.9)] * passes) for _ in range(300)]
    assert sum(find_fall([one]) is not None for one in texts) <= 2, "P(more) is 0.004 at one in 1,000"
    # The same at a level that 300 texts can put to the test.
    monkeypatch.setattr("specviz.theory.along_texts.SIGNIFICANT", 0.05)
    called = sum(find_fall([one]) is not None for one in texts)
    assert called <= 27, "P(more) is 0.001 at one in 20"


def test_a_rate_that_falls_from_eight_tenths_to_five_is_found_where_it_does():
    generator = random.Random(0)
    falls = []
    for _ in range(50):
        passes = text(generator, *[0.8] * 100, *[0.5] * 100)
        falls.append((find_fall([passes]), sum(one.tokens for one in passes[:100])))
    found = [(fall, position) for fall, position in falls if fall is not None]
    assert len(found) >= 48
    for fall, position in found:
        assert fall.p_value <= SIGNIFICANT and abs(fall.position - position) < 0.35 * position
        assert fall.before == pytest.approx(0.8, abs=0.12) and fall.after == pytest.approx(0.5, abs=0.12)


def test_rising_and_hardly_falling_rates_are_no_finding_and_nor_is_a_short_text():
    generator = random.Random(1)
    assert find_fall([text(generator, *[0.5] * 100, *[0.8] * 100)]) is None
    assert find_fall([text(generator, *[0.8] * 5000, *[0.75] * 5000)]) is None, "sure, and too little to matter"
    assert find_fall([text(generator, *[0.9] * 10, *[0.1] * 10)]) is None
    assert find_fall([]) is None and find_fall([[Pass(0, 0, 1)] * 500]) is None, "nothing was drafted"


def test_many_short_texts_tell_together_what_none_tells_alone_and_hard_texts_may_be_long():
    generator = random.Random(2)
    falling = [text(generator, *[0.8] * 20, *[0.5] * 20) for _ in range(20)]
    fall = find_fall(falling)
    assert fall is not None and 40 < fall.position < 110
    assert sum(find_fall([one]) is not None for one in falling) < 10
    for _ in range(20):
        easy, hard = (text(generator, *[rate] * length) for rate, length in [(0.9, 40), (0.4, 400)])
        assert find_fall([easy, hard]) is None, "each holds its rate; only together do they seem to fall"


def test_a_server_that_lists_its_passes_is_told_and_one_that_counts_them_cannot_be():
    generator = random.Random(3)
    passes = text(generator, *[0.85] * 100, *[0.4] * 100)
    listed = {"per_pass_accepted": [one.accepted for one in passes], "per_pass_drafted": [GAMMA] * len(passes)}
    counted = {"passes": len(passes), "accepted": sum(one.accepted for one in passes), "drafted": GAMMA * len(passes)}

    def signs(request: dict) -> Signs:
        return signs_of(read_metrics(json.dumps({"schema": "specviz.metrics/1", "requests": [request]})).requests)

    assert signs(listed).fall == find_fall([passes]) is not None
    assert signs(counted).fall is None
    for language in LANGUAGES:
        (told,) = [one for one in findings(signs(listed), words(language)) if one["kind"] == "falls"]
        assert str(signs(listed).fall.position) in told["text"] and len(told["causes"]) == 2
    assert "falls" not in {finding.kind for finding in examine(signs(counted))}


# --- a text that loops ------------------------------------------------------------------------------------------------

REFRAIN = "and the wind came in from the sea , oh , the wind came in from the sea"
SONG = [f"verse {n} tells of {place} and of {REFRAIN} , {REFRAIN}" for n, place in enumerate("abcdef")]
CODE = [f"self . field_{n} = arguments . get ( '{n}' , None )" for n in range(40)]
TABLE = ["| name | size |", "| --- | --- |", *(f"| {n} | {n * n} |" for n in range(40))]


@pytest.mark.parametrize("period", [1, 2, 7, 30])
def test_a_loop_counts_from_its_second_time_on_wherever_it_stands(period):
    before, after = [1000 + n for n in range(50)], [2000 + n for n in range(50)]
    loop = (list(range(period)) * 200)[: 4 * period + 40]
    assert looped(loop) == looped([*before, *loop]) == looped([*before, *loop, *after]) == len(loop) - period
    assert looped([*loop, *before, *loop]) == 2 * (len(loop) - period)


@pytest.mark.parametrize(
    "lines", [SONG, CODE, TABLE, [REFRAIN] * 3, ["na"] * 12], ids=["song", "code", "table", "refrain", "chant"]
)
def test_refrains_lists_and_code_are_no_loops(lines):
    assert looped(" \n ".join(lines).split(" ")) == 0


def test_a_run_says_what_there_is_to_say_of_its_text_and_else_nothing():
    generator = random.Random(4)
    falling = [
        "a" * one.accepted + "r" * (one.judged > one.accepted) for one in text(generator, *[0.9] * 60, *[0.4] * 60)
    ]
    steady = a_run(rounds_of(*["aar"] * 4))
    assert remarks(steady.rounds, 5) == []
    (fall,) = remarks(distinct(rounds_of(*falling)), 1000)
    assert fall["say"] == "generate.falls" and fall["context"] == 1000 + fall["n"] and fall["before"] > fall["after"]
    (loop,) = remarks(rounds_of(*["aaa"] * 20), 5)
    assert loop == {"say": "generate.loops", "repeated": 76, "tokens": 80} and flatters(76, 80)
    assert remarks(rounds_of(*[""] * 80), 5) == [], "plain decoding accepts nothing"
    (unasked,) = remarks(choosing(rounds_of(*["aar"], *[""] * 3), 2, 0, 0, 0), 5)
    assert unasked == {"say": "generate.unasked", "unasked": 3, "rounds": 4}
    (never,) = remarks(choosing(rounds_of(*[""] * 3), 0, 0, 0), 5)
    assert never == {"say": "generate.unasked", "unasked": 3, "rounds": 3}
    assert remarks(choosing(rounds_of("aar", ""), 2, 0), 5) == [], "half of the rounds"
    assert remarks(choosing(rounds_of("", ""), 3, 3), 5) == [], "asked for, and nothing was found"
    coins = "1.1=0.1 1.3=0.1 1.4=0.1 1.next=0.1 2.next=0.1 3.1=0.1 9.next=0.1"
    (unflipped,) = remarks(rounds_of("ard", ""), 5, coins)
    assert unflipped == {"say": "generate.unflipped", "coins": "1.3, 1.4, 3.1, 9.next", "n": 2}
    assert a_run(rounds_of("ard", ""), coins=coins).unflipped == ["1.3", "1.4", "3.1", "9.next"]
    assert remarks(rounds_of("ard", ""), 5, "1.2=0.5 2.next=0.5") == [], "all of them decided"
    for language in LANGUAGES:
        assert all("{" not in words(language).translated(remark) for remark in (fall, loop, unasked, unflipped))


def choosing(rounds, *depths):
    """The rounds as γ = auto asked for them."""
    return tuple(replace(round_, choice=LengthChoice(depth, 1.0)) for round_, depth in zip(rounds, depths, strict=True))


def distinct(rounds):
    """The rounds with tokens that do not repeat."""
    return [replace(one, emitted=tuple(100 * one.index + n for n in range(len(one.emitted)))) for one in rounds]
