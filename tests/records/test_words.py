"""The page's words: complete in every language, and no sentence outside the catalogs."""

import ast
import itertools
import json
import pathlib
import pickle
import re
from collections.abc import Callable, Iterator

import pytest
from elements import VIEW, element
from on_page import assert_no_sideways_scrolling, choose_drafter, set_control, settle, start, state
from playwright.sync_api import Page, expect
from running import ROOT

from specviz import DRAFTERS
from specviz.records.errors import SpecvizError
from specviz.records.prompts import PRESETS
from specviz.records.runs import StopReason
from specviz.records.settings import SETTINGS, SamplingParams
from specviz.records.words import LANGUAGES, TEMPLATES, Bytes, Sentence, Text, Words, joined, said, texts_of, words
from specviz.rules import RULES
from specviz.ui import ways

FIRST, *OTHERS = LANGUAGES
PACKAGE = sorted((ROOT / "specviz").rglob("*.py"))
SCRIPTS = sorted((ROOT / "assets" / "web").rglob("*.js"))

#: By the areas whose keys are the English templates, the classes and methods that are given those templates.
GIVEN = {"errors": ("SpecvizError", "complaint", "_refused"), "steps": ("Sentence",)}

#: Words, units and signs that are the same in German.
SAME = {"Prompt", "Python", "Seed", "Medusa", "EAGLE", "MTP", "Parallel", "Lookahead", "Suffix", "Hybrid", "Bonus"}
SAME |= {"specviz", "greedy", "Top", "Min", "live", "Text", "QR", "Quiz", "Pause", "Server", *"kpγcTKB", "χ²", "ms"}

PLACEHOLDER = re.compile(r"\{(\w+)(?::[^{}]+)?\}")


def forms(text: Text) -> dict[str, str]:
    """The sentences of a text by plural form; one without a form stands under ``any``."""
    return text if isinstance(text, dict) else {"any": text}


def placeholders(text: Text) -> dict[str, list[str]]:
    """By form; each as often as it stands there once, however often."""
    return {form: sorted(set(PLACEHOLDER.findall(sentence))) for form, sentence in forms(text).items()}


def kept_areas(language: str) -> dict[str, dict[str, Text]]:
    return {area: texts for area, texts in words(language).areas.items() if area not in TEMPLATES}


# --- the catalogs beside each other ----------------------------------------------------------------------------------


@pytest.mark.parametrize("language", OTHERS)
def test_languages_have_the_same_texts_with_the_same_placeholders(language):
    first, other = kept_areas(FIRST), kept_areas(language)
    assert first.keys() == other.keys()
    texts = [text for name in LANGUAGES for area in words(name).areas.values() for text in area.values()]
    assert all(forms(text).keys() in ({"any"}, {"one", "other"}) for text in texts), "what counts has both forms"
    for area, texts in first.items():
        assert texts.keys() == other[area].keys(), area
        for key, text in texts.items():
            assert placeholders(text) == placeholders(other[area][key]), f"{area}.{key}"


def test_no_file_has_a_key_twice():
    """JSON takes the last of equal keys: the first sentence would never be said."""

    def once(pairs: list[tuple[str, Text]]) -> dict[str, Text]:
        assert len(dict(pairs)) == len(pairs), [key for key, _ in pairs]
        return dict(pairs)

    for file in itertools.chain(*((ROOT / "assets" / folder).rglob("*.json") for folder in ("text", "web"))):
        json.loads(file.read_text(encoding="utf-8"), object_pairs_hook=once)


@pytest.mark.parametrize("language", OTHERS)
def test_nothing_is_left_untranslated(language):
    first = kept_areas(FIRST)
    left = []
    for area, texts in texts_of(language).items():
        for key, text in texts.items() if area not in TEMPLATES else ():
            for form, sentence in forms(text).items():
                own_words = set(re.findall(r"[^\W\d_]+", PLACEHOLDER.sub("", sentence)))
                if sentence == forms(first[area][key])[form] and own_words - SAME:
                    left.append(f"{area}.{key}: {sentence}")
    assert not left, "\n".join(left)


# --- the code beside the catalogs ------------------------------------------------------------------------------------


def calls(path: pathlib.Path, name: str) -> Iterator[ast.Call]:
    """Every call of a function, class or method of that name."""
    return calls_in(ast.parse(path.read_text(encoding="utf-8")), name)


def calls_in(tree: ast.AST, name: str) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and name in (getattr(node.func, "id", None), getattr(node.func, "attr", None)):
            yield node


def keys_of(node: ast.expr) -> Iterator[str]:
    """The keys an expression may come to, as patterns: an f-string's values may be anything."""
    if isinstance(node, ast.Constant):
        yield re.escape(node.value)
    elif isinstance(node, ast.JoinedStr):
        yield "".join(re.escape(part.value) if isinstance(part, ast.Constant) else r"\w+" for part in node.values)
    elif isinstance(node, ast.IfExp):
        yield from keys_of(node.body)
        yield from keys_of(node.orelse)


def keys_in_python() -> Iterator[tuple[str, str]]:
    for path in PACKAGE:
        for call in itertools.chain(calls(path, "say"), calls(path, "said")):
            for key in keys_of(call.args[0]) if call.args else ():
                if re.match(r"(\w+|\\w\+)\\\.", key):  # not the benchmark's own `say`, which prints a line
                    yield f"{path.name}:{call.lineno}", key


def keys_in_scripts() -> Iterator[tuple[str, str]]:
    """Literal keys anywhere in a script: some stand in a choice before they are said."""
    areas = "|".join(kept_areas(FIRST))
    literal = re.compile(rf"""(["`])((?:{areas})\.(?!css\b)[\w${{}}.\[\]]+)\1""")  # race.css is no key
    for path in SCRIPTS:
        for match in literal.finditer(path.read_text(encoding="utf-8")):
            parts = re.split(r"\$\{[^}]*\}", match[2])
            yield f"{path.name}: {match[2]}", r"\w+".join(map(re.escape, parts))


def test_every_key_that_is_said_has_a_text():
    texts = words(FIRST).texts(*kept_areas(FIRST))
    python, scripts = list(keys_in_python()), list(keys_in_scripts())
    assert len(python) > 100 and len(scripts) > 50
    missing = [place for place, key in python + scripts if not any(re.fullmatch(key, known) for known in texts)]
    assert not missing, "\n".join(missing)
    # So has every name that the page shows; a drafter without words shows its own and its docstring's first line.
    assert set(ways.WAYS) == {*DRAFTERS, ways.PLAIN} and set(ways.RULE_CHOICES) == {"auto", *RULES}
    assert all((f"ways.{name}" in texts) == (f"ways.{name}_about" in texts) for name in ways.WAYS)
    named = [f"ways.rule_{name}{end}" for name in ways.RULE_CHOICES for end in ("", "_about")]
    named += [f"controls.preset_{preset.name}" for preset in PRESETS]
    named += [f"generate.end_{reason}" for reason in StopReason.__args__]
    assert [name for name in named if not texts.get(name)] == []


def test_no_text_is_left_that_nothing_says():
    said = {re.compile(key) for _, key in [*keys_in_python(), *keys_in_scripts()]}
    # Charts are named by a table of keys.
    sources = "".join(path.read_text(encoding="utf-8") for path in (*PACKAGE, *SCRIPTS))
    names = set(re.findall(r"\w+", sources))
    begun, ended = (tuple(set(re.findall(part, sources))) for part in (r"(\w{4,})\$?\{", r"\}(_\w+)"))

    def is_said(key: str) -> bool:
        if f'"{key}"' in sources:
            return True
        name = key.partition(".")[2]
        known = name in names or name.startswith(begun) or name.endswith(ended)
        # A key that may be any of its area says none of them: then its name, or how that begins or ends, stands there.
        return any(known or not one.pattern.endswith(r"\.\w+") for one in said if one.fullmatch(key))

    idle = [key for key in words(FIRST).texts(*(kept_areas(FIRST).keys() - {"common"})) if not is_said(key)]
    assert not idle, "\n".join(idle)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_scripts_show_no_words_of_their_own(path):
    shown = r"""\b(?:text|title|placeholder|"aria-label"|"aria-valuetext"|"aria-description"): *(["`])(.*?)(?<!\\)\1"""
    literals = [match[2] for match in re.finditer(shown, path.read_text(encoding="utf-8"))]
    assert not [literal for literal in literals if re.search(r"[^\W\d_]{2}", re.sub(r"\$\{[^}]*\}", "", literal))]


@pytest.mark.parametrize("area", GIVEN)
@pytest.mark.parametrize("language", OTHERS)
def test_every_refusal_and_every_step_can_be_said_in_every_language(area, language):
    translated, found = words(language).areas[area], {}
    for path in PACKAGE:
        for call in (call for name in GIVEN[area] for call in calls(path, name)):
            place, template = f"{path.name}:{call.lineno}", call.args[0]
            if ast.unparse(template) in ("template", "self.template"):
                continue  # a copy of an error, or a template that is handed on
            if ast.unparse(template) == "self.sentence":
                found |= {row.sentence: place for row in SETTINGS.values()}
                continue
            assert isinstance(template, ast.Constant), f"{place}: a template stands there as it is, values beside it"
            found[template.value] = place
            given = {keyword.arg for keyword in call.keywords}
            if None not in given:
                # `complaint` knows a model's name and kind, a part's folder, a request's number, a round's index, and
                # a server's address.
                knowing = ast.unparse(call.func).endswith(("complaint", "_refused"))
                known = {"name", "kind", "folder", "number", "value", "index", "server"} if knowing else set()
                assert given | known == set(PLACEHOLDER.findall(template.value)) | known, place
    assert found.keys() - translated.keys() == set(), "nobody has translated these"
    assert translated.keys() - found.keys() == set(), "nothing says these any more"
    for template, sentence in translated.items():
        assert placeholders(template) == placeholders(sentence), template
        assert template != sentence


# --- Words -----------------------------------------------------------------------------------------------------------


def test_values_are_filled_in_once_and_a_refusal_keeps_them_across_processes_and_parameters():
    say = Words("en", {"area": {"key": "{a} and {b}", "count": {"one": "{n} token", "other": "{n} tokens"}}})
    assert say("area.key", a="{b}", b="{c}") == "{b} and {c}"
    assert [say("area.count", n=n) for n in (0, 1, 2)] == ["0 tokens", "1 token", "2 tokens"]
    error = SpecvizError("There is no folder or file {name}.", "target", name="a {name}")
    copy = pickle.loads(pickle.dumps(error)).at("draft")
    assert (str(copy), copy.field) == ("There is no folder or file a {name}.", "draft")
    assert words("de").error(copy) == "Es gibt keinen Ordner und keine Datei a {name}."
    step = Sentence("Loading {name} ({size}).", name="tiny", size="3 MB")
    assert step == "Loading tiny (3 MB)."
    assert words("de").step(step) == "tiny wird geladen (3 MB)."
    step = Sentence("Loading {name} ({size}).", name="tiny", size=Bytes(3e6))
    assert words("de").step(step) == "tiny wird geladen (3\u00a0MB)." and str(step) == "Loading tiny (3 MB)."


@pytest.mark.parametrize("language", LANGUAGES)
def test_no_line_ends_between_a_number_and_its_unit(language):
    texts = [text for area in words(language).areas.values() for text in area.values()]
    sentences = [one for text in texts for one in (text.values() if isinstance(text, dict) else [text])]
    broken = re.compile(r"[\d}] (ms|s|min|MB|GB|%|B)(?!\w)")
    assert [one for one in sentences if broken.search(one)] == []
    assert words(language)("line.seconds", seconds=60).endswith("60\u00a0s.")
    unsaid = Sentence("it takes {seconds} s", seconds=60)  # no file has it: English stands in
    assert words(language).step(unsaid) == "it takes 60\u00a0s"


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_page_and_the_api_say_the_same(alone, language):
    formats = [said("lossless.p_small", p=p) for p in (3e-12, 0.000012, 0.00034, 0.05)] + [
        said("lossless.times", times=2)
    ]
    facts = [said("lossless.running", n=1234, runs=20000), said("lossless.distribution_words", n=1, total=0.999)]
    message = {"kind": "x", "line": joined([said("generate.temperature", value=0.8), "γ = 4"]), "all": [formats, facts]}
    message["nested"] = said("lossless.so_far", tv=0.0621, p=said("lossless.p_large", p=0.41))
    page = alone("lossless", language)
    script = f"m => import('/shared/words.js').then(({{ spoken }}) => spoken(m, {element('lossless')}.say))"
    assert page.evaluate(script, message) == words(language).translated(message)


def test_numbers_have_their_languages_decimal_sign():
    say = words("de")
    assert (say.number(1234.5, ".1f"), words().number(1234.5, ".1f")) == ("1234,5", "1234.5")
    assert (say.number(-0.5, ".1f"), words()("lossless.p_small", p=3e-12).count("e−12")) == ("−0,5", 1)
    assert say("why.step_rest", rest=0.25) == say("why.step_rest", rest="0,25")
    assert "Qwen2.5" in say("why.source_run", run="Qwen2.5")  # what is no number is left alone
    with pytest.raises(SpecvizError) as caught:
        SamplingParams(temperature=0.001)
    assert "0.001" in str(caught.value) and "0,001" in say.error(caught.value)
    step = Sentence("Loading {name} ({size}).", name="Qwen2.5", size=Bytes(2.5e9))
    assert (str(step), say.step(step)) == ("Loading Qwen2.5 (2.5 GB).", "Qwen2.5 wird geladen (2,5\u00a0GB).")


# --- the German page -------------------------------------------------------------------------------------------------


def test_the_german_page_is_german_runs_and_refuses_in_german(visit: Callable[..., Page]):
    page, say = visit(), words("de")
    page.get_by_role("link", name=LANGUAGES["de"]).click()
    page.wait_for_url("**/de")
    page.wait_for_function(f"() => {VIEW}?.recorded")
    page.wait_for_function("title => document.title === title", arg=say("page.title"))
    assert page.evaluate("document.documentElement.lang") == "de"
    expect(page.locator("#go")).to_have_text(say("page.go"))
    choose_drafter(page, "early_exit", "de")
    for label, value in ((say("controls.max_new_tokens"), 8), (say("controls.seed"), -1)):
        set_control(page, label, value)
    page.get_by_label(say("page.measured")).uncheck()
    page.locator("#go").click()
    refusal = "Der Seed muss eine ganze Zahl von 0 bis 2^53 − 1 sein."
    expect(page.locator(".sv-more").get_by_text(refusal)).to_be_visible()
    set_control(page, say("controls.seed"), 3)
    start(page)
    settle(page)
    expect(page.locator("specviz-run")).to_contain_text(say("generate.end_length"))
    assert state(page, "text")
    page.set_viewport_size({"width": 390, "height": 844})
    assert_no_sideways_scrolling(page)
