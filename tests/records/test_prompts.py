"""Files of prompts of one's own: what they may hold, and refusals that name the line."""

from __future__ import annotations

import json

import pytest

from specviz.records import prompts
from specviz.records.errors import SpecvizError
from specviz.records.prompts import on_each, read_prompts, text_of
from specviz.records.settings import RunSettings

TURN = {"role": "user", "content": "Why?"}


def test_a_text_a_line_is_kept_as_it_is_and_empty_lines_are_left_out():
    found = read_prompts("\ufeffOnce upon\r\n\r\n  \n  indented {\n\u2028no end of a line\n")
    assert [(one.name, one.prompt) for one in found] == [
        ("1", "Once upon"),
        ("4", "  indented {"),
        ("5", "\u2028no end of a line"),
    ]
    assert not any(one.domain or one.messages for one in found)


def test_json_lines_hold_a_prompt_or_messages_and_a_domain():
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
    with pytest.raises(SpecvizError) as refusal:
        read_prompts('{"prompt": "right"}\n\n' + line)
    assert refusal.value.field == "prompts"
    assert str(refusal.value).startswith("Line 3 of the prompts ") and said in str(refusal.value)


def test_a_file_without_prompts_with_too_many_or_that_cannot_be_read_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(prompts, "MOST_PROMPTS", 2)
    (tmp_path / "latin").write_bytes(b"caf\xe9")
    for read, said in (
        (lambda: read_prompts(" \n\n"), "is empty"),
        (lambda: read_prompts("a\nb\nc"), "has 3 prompts; at most 2"),
        (lambda: text_of(tmp_path / "latin"), "it is not UTF-8"),
        (lambda: text_of(tmp_path / "nowhere"), "No such file"),
    ):
        with pytest.raises(SpecvizError, match=said) as refusal:
            read()
        assert refusal.value.field == "prompts"


def test_messages_are_filled_into_the_template_and_a_prompt_that_does_not_fit_names_its_line():
    found = read_prompts(json.dumps({"messages": [TURN]}) + "\n" + json.dumps({"prompt": "Once"}))
    made = on_each(found, RunSettings("", chat=True), lambda messages: (1, 2, len(messages)), lambda one: one)
    assert [(one.prompt, one.chat) for one in made] == [((1, 2, 1), False), ("Once", True)]

    def refusing(settings):
        if settings.prompt == "Once":
            raise SpecvizError("The prompt is too long.", "prompt")

    with pytest.raises(SpecvizError, match=r"^Line 2 of the prompts: The prompt is too long\.$") as refusal:
        on_each(found, RunSettings(""), len, refusing)
    assert refusal.value.field == "prompts"
