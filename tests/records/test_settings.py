"""Settings and prompts: what cannot be is refused by the name of its field, or of its line."""

import json

import numpy
import pytest
from refusal import refused

from specviz.records import prompts
from specviz.records.errors import SpecvizError
from specviz.records.prompts import on_each, read_prompts, text_of
from specviz.records.settings import DraftParams, RunSettings, SamplingParams

NAN = float("nan")

#: Kind of settings -> field -> values that it refuses.
REFUSED = {
    SamplingParams: {"temperature": [-1, NAN, 1e-9], "top_p": [0, 2], "top_k": [-1, 1.5, NAN], "min_p": [1.5]},
    DraftParams: {
        "branches": [0, 9, 2.5, True],
        "confidence": [1, -0.1, NAN, "high"],
        "exit_layer": [0],
        "bits": [5, 8.0],
    },
    RunSettings: {
        "num_draft_tokens": [0, 10**6, 2.5, -1, "Auto", "", None, True],
        "max_new_tokens": [0, True],
        "seed": [-1],
        "stop": ["end"],
        "grammar": [7, None, {"type": "integer"}],
        "coins": [
            *("3.2", "3.2=1", "3.2=1.5", "0.2=0.5", "3.0=0.5", "3=0.5", "a.b=c", "3.2=nan", "3.2=-0.1"),
            *("3.2=0.99999999", "1.1=0.5 " * 65, "1.1=0.4 2.1=0.4 1.1=0.9", 7),
        ],
    },
}
CASES = [(kind, name, value) for kind, fields in REFUSED.items() for name, values in fields.items() for value in values]


@pytest.mark.parametrize("kind, name, value", CASES)
def test_what_cannot_be_is_refused_by_the_name_of_its_field(kind, name, value):
    with refused(name):
        kind(**({"prompt": "x"} if kind is RunSettings else {}), **{name: value})


def test_a_whole_number_is_a_top_k_in_whatever_way_it_is_written():
    assert repr(SamplingParams(top_k=50.0).top_k) == "50"


TURN = {"role": "user", "content": "Why?"}


def test_a_file_of_prompts_has_a_text_a_line_or_json_with_a_prompt_or_messages_and_a_domain():
    found = read_prompts("\ufeffOnce upon\r\n\r\n  \n  indented {\n\u2028no end of a line\n")
    texts = [("1", "Once upon"), ("4", "  indented {"), ("5", "\u2028no end of a line")]
    assert [(one.name, one.prompt) for one in found] == texts
    assert not any(one.domain or one.messages for one in found)
    lines = [{"prompt": "Once\nupon\u2028a", "domain": "story"}, {"messages": [TURN | {"name": "x"}], "id": 3}]
    one, other = read_prompts("\n".join(json.dumps(line, ensure_ascii=False) for line in lines))
    assert (one.prompt, one.domain, one.messages) == ("Once\nupon\u2028a", "story", ())
    assert (other.prompt, other.domain, other.messages) == ("", "", (TURN,))


@pytest.mark.parametrize(
    "line, said",
    [
        ("Once upon", "is not JSON"),
        ('{"prompt": ' + "[" * 100_000, "is not JSON"),
        ("[1]", "an object with either prompt or messages, not [1]"),
        ("{}", "an object with either prompt or messages"),
        ('{"prompt": "a", "messages": []}', "an object with either prompt or messages"),
        ('{"prompt": 3}', "a text as its prompt, not 3"),
        ('{"prompt": "a", "domain": null}', "a text as its domain, not None"),
        ('{"messages": []}', "messages with the texts role and content"),
        ('{"messages": [{"role": "user"}]}', "messages with the texts role and content"),
        ('{"messages": "Why?"}', "messages with the texts role and content, not 'Why?'"),
    ],
)
def test_a_line_that_is_wrong_is_named(line, said):
    with refused("prompts") as refusal:
        read_prompts('{"prompt": "right"}\n\n' + line)
    assert str(refusal.value).startswith("Line 3 of the prompts ") and said in str(refusal.value)


def test_a_file_without_prompts_with_too_many_or_that_cannot_be_read_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(prompts, "MOST_PROMPTS", 2)
    (tmp_path / "latin").write_bytes(b"caf\xe9")
    for read, said in (
        (lambda: read_prompts(" \n\n"), "is empty"),
        (lambda: read_prompts("a\nb\nc"), "has 3 prompts, but at most 2"),
        (lambda: text_of(tmp_path / "latin"), "it is not UTF-8"),
        (lambda: text_of(tmp_path / "nowhere"), "No such file"),
    ):
        with refused("prompts", said):
            read()


def test_messages_are_filled_into_the_template_and_a_prompt_that_does_not_fit_names_its_line():
    found = read_prompts(json.dumps({"messages": [TURN]}) + "\n" + json.dumps({"prompt": "Once"}))
    made = on_each(found, RunSettings("", chat=True), lambda messages: (1, 2, len(messages)), lambda one: one)
    assert [(one.prompt, one.chat) for one in made] == [((1, 2, 1), False), ("Once", True)]

    def refusing(settings):
        if settings.prompt == "Once":
            raise SpecvizError("The prompt is too long.", "prompt")

    with refused("prompts", r"^Line 2 of the prompts: The prompt is too long\.$"):
        on_each(found, RunSettings(""), len, refusing)


def test_numbers_of_an_array_are_taken_and_kept_as_python_s():
    sampling = SamplingParams(temperature=numpy.float32(0.5), top_k=numpy.int64(5))
    settings = RunSettings("a", num_draft_tokens=numpy.arange(4)[3], seed=numpy.int32(2), sampling=sampling)
    kept = [settings.num_draft_tokens, settings.seed, sampling.temperature, sampling.top_k]
    assert kept == [3, 2, 0.5, 5] and [type(value) for value in kept] == [int, int, float, int]
    with refused("seed"):
        RunSettings("a", seed=numpy.float32(0.5))


@pytest.mark.parametrize(("name", "value"), [("sampling", {"temperature": 0.5}), ("drafting", {"branches": 3})])
def test_settings_within_settings_are_of_their_kind(name, value):
    with refused(name, f"{name} must be specviz\\."):
        RunSettings("a", **{name: value})
