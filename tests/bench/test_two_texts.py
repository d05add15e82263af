"""Two texts of other engines: rounding is told from a fault, and whose fault it is."""

from dataclasses import replace

import pytest
import torch
from tiny import generated, tiny_pair

from specviz.__main__ import main
from specviz.bench.two_texts import Parting, Side, cut, parting
from specviz.decoding.engine import rounds
from specviz.decoding.record import collect
from specviz.decoding.request import prepare
from specviz.foreign.answers import written
from specviz.models.loading import load_pair
from specviz.records.errors import SpecvizError
from specviz.records.settings import RunSettings, SamplingParams
from specviz.records.words import words
from specviz.views.terminal import parting_lines

PROMPT = [5, 6, 7, 5, 6]


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def pair(request):
    made = tiny_pair("llama")
    made.target.to(request.param)
    return made


def continued(pair, *tokens: int, length: int = 12) -> list[int]:
    """These tokens after the prompt, and then the target's own."""
    return [*PROMPT, *tokens, *generated(pair, [*PROMPT, *tokens], length)]


def test_under_a_grammar_the_masked_target_is_the_judge(pair):
    """What it forbids is a fault even where the target prefers it, and what it leaves is none where the target does
    not."""
    settings = RunSettings(tuple(PROMPT), None, sampling=SamplingParams(0.0), max_new_tokens=6)
    free, masked = (prepare(pair, replace(settings, grammar=grammar)) for grammar in ("", "/[!-/]*/"))
    free_text, fitting = ([*PROMPT, *collect(one, list(rounds(one))).token_ids] for one in (free, masked))
    assert parting(pair, free_text, fitting, len(PROMPT)).wrong == (False, True)
    judged = parting(pair, free_text, fitting, len(PROMPT), grammar=masked.grammar)
    assert judged.wrong == (True, False) and judged.sides[1].largest == 0


def verdict(found: Parting | None) -> str:
    """Its first sentence."""
    return parting_lines(found, ("A", "B"), words())[0]


def test_equal_texts_are_equal_and_a_changed_token_is_its_texts_fault(pair):
    due = continued(pair)
    assert parting(pair, due, list(due)) is None
    place = len(PROMPT) + 4
    other = (due[place] + 1) % pair.vocab_size
    wrong = [*due[:place], other, *due[place + 1 :]]
    found = parting(pair, due, wrong)
    assert found.place == place + 1 and found.wrong == (False, True)
    assert found.sides[0].gap == 0 < found.tolerance < found.sides[1].gap
    assert verdict(found).startswith("Not a near-tie: B did not follow")
    assert verdict(parting(pair, wrong, due)).startswith("Not a near-tie: A did not follow")


def test_two_tokens_that_the_target_cannot_tell_apart_are_a_near_tie(pair):
    best = continued(pair)[len(PROMPT)]
    twin = (best + 1) % pair.vocab_size
    head = pair.target.get_output_embeddings().weight
    with torch.no_grad():
        head[twin] = head[best]
    one, other = continued(pair, best), continued(pair, twin)
    found = parting(pair, one, other)
    assert found.wrong == (False, False) and [side.gap for side in found.sides] == [0, 0]
    assert verdict(found) == "A near-tie: rounding decides it, so neither text is wrong."
    # What comes after a tie must still be the target's own.
    lost = [*other[:-1], (other[-1] + 1) % pair.vocab_size]
    found = parting(pair, one, lost)
    assert found.wrong == (False, True) and found.sides[1].later[0] == len(lost) - len(PROMPT) - 1


def test_a_text_that_ends_early_and_texts_that_share_nothing(pair):
    due = continued(pair)
    found = parting(pair, due, due[:-3])
    assert (found.place, found.sides[1].token, found.wrong) == (len(due) - 2, "", (False, False))
    assert verdict(found).startswith("The only difference is the end: B was cut off")
    with pytest.raises(SpecvizError, match="give the prompt"):
        cut(pair, [1, 2], [2, 1])


@pytest.mark.parametrize("prompt", ["Once upon a time", "Once upon a ", "Once upon a ti"])
def test_tokens_are_counted_from_1_though_the_prompts_end_may_be_part_of_the_first(prompt):
    embedded = load_pair(dtype="float32", passes="plain")
    one, other, start = cut(embedded, "me there was", "me there lived", prompt)
    found = parting(embedded, one, other, start)
    assert found.place >= 1 and found.place == len(one) - start
    one, other, start = cut(embedded, "was", "lived", prompt)
    assert parting(embedded, one, other, start).place == 1


def test_of_a_fault_after_no_tie_nobody_is_said_to_have_chosen_among_equals():
    sides = Side(" time", 0.0, (3, 2.5), 2.5), Side(" day", 6.97, None, 6.97)
    parted = Parting(5, "Once upon a", sides, 6.97, 0.06, 0.25, "bfloat16")
    lines = parting_lines(parted, ("A", "B"), words())
    assert not any("equals" in line for line in lines)
    assert "A’s token 3 places later lies 2.5 below the target’s best token." in lines
    tied = replace(parted, margin=0.1, sides=(sides[0], replace(sides[1], gap=0.1)))
    assert any("A chose one of several equals there" in line for line in parting_lines(tied, ("A", "B"), words()))


def test_the_command_reads_texts_and_token_ids_and_its_status_says_whether_one_is_wrong(tmp_path, capsys):
    (tmp_path / "a.txt").write_text(" there lived a king who had a son", encoding="utf-16")
    (tmp_path / "b.txt").write_text(" there lived a king who had a xylophone")
    given = [str(tmp_path / "a.txt"), str(tmp_path / "b.txt"), "--prompt", "Once upon a time", "--dtype", "float32"]
    assert main(["compare-texts", *given]) == 1
    said = capsys.readouterr().out
    assert "a king who had a'" in said  # what both share
    assert "b.txt did not follow this target" in said and said.count("\n") >= 4
    (tmp_path / "ids.json").write_text("[5, 6, 7]")
    assert main(["compare-texts", *2 * [str(tmp_path / "ids.json")]]) == 0
    assert main(["compare-texts", str(tmp_path / "none"), str(tmp_path / "b.txt")]) == 2
    assert capsys.readouterr().err.startswith("specviz: one: The file cannot be read")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (" there lived\n", "its last line end"),
        ("Once upon a time there lived\r\n", "its last line end; the prompt in front"),
        ('{"choices": [{"text": " there lived"}], "usage": {}}', "everything but the text"),
        ('[{"choices": [{"message": {"content": " there lived"}}]}]', "everything but the text"),
        ('{"content": " there lived", "tokens_predicted": 2}\n', "everything but the text"),
        ('{"text": "Once upon a time there lived", "meta_info": {}}', "everything but the text"),
    ],
)
def test_a_file_is_compared_by_what_the_engine_wrote(text, said):
    found, left_out = written(text, "Once upon a time")
    assert found == " there lived" and all(part in "; ".join(left_out) for part in said.split("; "))


def test_what_a_model_wrote_stays_and_what_is_not_one_text_is_refused():
    for text in ('{"name": "x", "text": "y"}', "[1.5]", "a\r\nb\nc", "two\n\nlines"):
        assert written(text) == (text, [])
    assert written("[5, 6, 7]\n") == ([5, 6, 7], [])
    answer = '{"choices": [{"text": "a"}]}'
    for text in ('data: {"choices": []}\n\ndata: [DONE]', f"{answer}\n{answer}", f"[{answer}, {answer}]"):
        with pytest.raises(SpecvizError, match="a stream or several answers"):
            written(text)
    with pytest.raises(SpecvizError, match="no single text"):
        written('{"choices": [{"text": "a"}, {"text": "b"}]}')
