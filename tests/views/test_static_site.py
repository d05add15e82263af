"""The live page without a server: browsers compute there what torch and transformers compute, and the same coins give
the same text. The folder is served by Python's own server, under a path."""

import json
import random
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler
from urllib.request import urlopen

import pytest
import torch
from elements import VIEW, state
from on_page import assert_no_sideways_scrolling, violations
from playwright.sync_api import Page, expect
from running import serving

import specviz
from specviz.decoding.engine import rounds as rounds_of
from specviz.decoding.record import collect
from specviz.decoding.request import prepare
from specviz.models.pair import ModelPair
from specviz.models.token_texts import Detokenizer
from specviz.records.assets import WEB
from specviz.records.errors import SpecvizError
from specviz.records.prompts import PRESETS
from specviz.records.runs import Run
from specviz.records.settings import RunSettings
from specviz.records.words import words
from specviz.views.quiz import QUESTIONS
from specviz.views.run_messages import rounds_message
from specviz.views.static_site import write_site
from tools import static_kernels

PATH = "some/where"
PROMPTS = {preset.name: preset.prompt for preset in PRESETS}

#: Most that logits, of some 10, and probabilities may differ from torch's: sums are taken in another order.
LOGITS, PROBABILITY = 1e-4, 2e-5


class Quiet(SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments: object) -> None:
        """Nobody reads it."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the page."""
    root = tmp_path_factory.mktemp("host")
    write_site(root / PATH)
    with serving(partial(Quiet, directory=root)) as port:
        yield f"http://127.0.0.1:{port}/{PATH}/"


@pytest.fixture(scope="module")
def pair() -> ModelPair:
    return specviz.load_pair(device="cpu", dtype="float32")


@pytest.fixture
def live(new_page: Callable[..., Page], site: str) -> Iterator[Callable[..., Page]]:
    """Opens the page and waits for the models; nothing may be fetched from elsewhere."""
    asked = []

    def opened(query: str = "", **options) -> Page:
        page = new_page(heard={"request": lambda request: asked.append(request.url)}, **options)
        page.goto(site + query)
        page.wait_for_function("() => document.querySelector('progress')?.hidden")
        return page

    yield opened
    assert all(url.startswith((site, "data:", "blob:")) or url.endswith("/empty") for url in asked)


@pytest.fixture
def bench(new_page: Callable[..., Page], site: str) -> Page:
    """A page that does nothing of its own but can import the modules, by `load`, and make runs, by `runs`."""
    page = new_page()
    page.route("**/page.js", lambda route: route.fulfill(body="", content_type="text/javascript"))
    page.goto(site)
    page.evaluate("""async () => {
      const site = await (await fetch("site.json")).json();
      const whole = (path) => new URL(path, location.href).href;
      const place = ({ config, files }) => ({ config: whole(config), files: files.map(whole) });
      const { target, draft, tokenizer } = site.models;
      window.places = { target: place(target), draft: place(draft), tokenizer: whole(tokenizer) };
      window.load = (name) => import(whole(`web/static/${name}.js`));
      window.runs = async (asked) => {
        const worker = new Worker(whole("web/static/worker.js"), { type: "module" });
        const told = [];
        await new Promise((resolve, reject) => {
          worker.onmessage = ({ data }) => {
            if (data.failure) reject(data.failure);
            if (data.ready || data.idle) asked.length ? worker.postMessage({ run: asked.shift() }) : resolve();
            if (data.message) told.push(data.message);
          };
          worker.postMessage({ load: window.places });
        });
        worker.terminate();
        return told;
      };
    }""")
    return page


def test_the_folder_is_a_static_space_as_it_stands(site):
    with urlopen(site + "README.md") as readme, urlopen(site + "index.html") as page:
        assert "sdk: static" in readme.read().decode().split("---\n")[1].splitlines() and page.status == 200


def test_coins_are_torchs(bench):
    script = """async (seed) => {
      const generator = new (await load("random")).TorchGenerator(seed);
      return Array.from({ length: 2000 }, () => generator.uniform());
    }"""
    for seed in (0, 1, 2**31, 2**32 + 5, 2**53 - 1):
        expected = torch.rand(2000, generator=torch.Generator().manual_seed(seed)).tolist()
        assert bench.evaluate(script, seed) == expected, seed


def odd_texts() -> list[str]:
    chance = random.Random(0)
    signs = " \t\n\r\u000b\u001c\u0085\u00a0\u2028\u3000\ufeff\u180e'’sdtveLlmr0٣Ⅷ²a-_éßЖ한漢字🙂👩‍🚀"
    signs += "e\u0301\u0000\u007f\ud7ff\U0010ffff<|>"
    made = ["".join(chance.choices(signs, k=40)) for _ in range(60)]
    return [*PROMPTS.values(), "I'll we've don't 'Tis", "a  b   c\n\n  d ", "x<|endoftext|>y<|endoftext|>", *made]


def test_text_becomes_the_same_tokens_and_tokens_the_same_text(bench, pair):
    script = """async (texts) => {
      const { Tokenizer } = await load("tokenizer");
      const tokenizer = new Tokenizer(await (await fetch(places.tokenizer)).json());
      return texts.map((text) => {
        const [ids, pieces] = [tokenizer.encode(text), tokenizer.pieces()];
        return [ids, ids.map((id) => tokenizer.chip(id)), [...ids.map(pieces.push), pieces.flush()].join("")];
      });
    }"""
    texts = odd_texts()
    for text, (ids, chips, joined) in zip(texts, bench.evaluate(script, texts)):
        assert ids == list(pair.encode(text).ids), text
        assert chips == [pair.texts.chip(id) for id in ids]
        detokenizer = Detokenizer(pair.texts, pair.encode("a").ids)
        assert joined == "".join(map(detokenizer.push, ids)) + detokenizer.flush()


@pytest.mark.parametrize("role", ["target", "draft"])
def test_logits_are_those_of_transformers_and_passes_of_any_size_agree_to_the_bit(bench, pair, role):
    ids = list(pair.encode(3 * PROMPTS["repeats"] + PROMPTS["python"]).ids)
    script = """async ([role, ids]) => {
      const [{ Kernels }, { Llama, Reader }] = await Promise.all(["kernels", "llama"].map(load));
      const reader = new Reader(await Llama.load(await Kernels.load(), places[role], () => {}));
      reader.read(ids.slice(0, -9), 0);
      const rows = reader.read(ids, 9).map((row) => [...row]);
      const apart = [9, 8, 7, 6, 5, 4, 3, 2, 1].map((left) => {
        reader.keep(ids.length - left);
        return [...reader.read(ids.slice(0, ids.length - left + 1), 1)[0]];
      });
      return [rows, apart];
    }"""
    rows, apart = bench.evaluate(script, [role, ids])
    assert rows == apart
    with torch.inference_mode():
        true = getattr(pair, role)(torch.tensor([ids])).logits[0, -9:]
    assert (torch.tensor(rows) - true).abs().max() < LOGITS


CASES = [
    {"prompt": "story", "drafter": "draft_model", "num_draft_tokens": 3, "temperature": 0.0},
    {"prompt": "python", "drafter": "draft_model", "num_draft_tokens": 8, "temperature": 0.0},
    {"prompt": "repeats", "drafter": "prompt_lookup", "num_draft_tokens": 5, "temperature": 0.0},
    {"prompt": "story_sea", "drafter": "plain", "num_draft_tokens": 4, "temperature": 0.0},
    {"prompt": "story_king", "drafter": "draft_model", "num_draft_tokens": 4, "temperature": 1.0, "seed": 7},
    {"prompt": "story", "drafter": "draft_model", "num_draft_tokens": 2, "temperature": 0.6, "seed": 3},
    {
        "prompt": "story",
        "drafter": "draft_model",
        "num_draft_tokens": 2,
        "temperature": 0.6,
        "coins": "1.1=0.99 2.next=0.5",
    },
    {"prompt": "repeats", "drafter": "prompt_lookup", "num_draft_tokens": 4, "temperature": 1.0, "seed": 2**33 + 1},
    {"prompt": "hard", "drafter": "plain", "num_draft_tokens": 4, "temperature": 1.3, "seed": 11},
]
DEFAULTS = {"max_new_tokens": 20, "seed": 0, "coins": ""}


def close(one: object, other: object) -> bool:
    """The same up to rounding, which may also order tokens otherwise whose probabilities are equal."""
    if isinstance(one, float) or isinstance(other, float):
        return abs(one - other) < PROBABILITY
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(close(value, other[name]) for name, value in one.items())
    if isinstance(one, list) and one and isinstance(one[0], list) and len(one[0]) == 2:
        known = dict(other)
        return all(close(float(p), float(known.get(id, 0))) for id, p in one) and len(one) == len(other)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(close, one, other))
    return one == other


def test_every_round_is_the_one_that_is_made_here_by_the_same_coins(bench, pair):
    """Tokens, coins, outcomes and probabilities, as the page's elements are told of them."""
    asked = [DEFAULTS | case | {"prompt": PROMPTS[case["prompt"]]} for case in CASES]
    told = bench.evaluate("(asked) => runs(asked)", [one | {"measured": False, "opening": {}} for one in asked])
    made = {one["run"]: [] for one in told}
    for message in told:
        made[message["run"]] += message.get("rounds", [])
    ends = [message for message in told if message["kind"] == "end"]
    for settings, rounds, end in zip(asked, made.values(), ends, strict=True):
        request = prepare(pair, RunSettings.of(settings | {"branches": 1}))
        run = collect(request, list(rounds_of(request)))
        for mine, theirs in zip(rounds, told_rounds(run), strict=True):
            del mine["seconds"], theirs["seconds"]
            mine, theirs = ({name: value for name, value in one.items() if value} for one in (mine, theirs))
            assert close(mine, theirs), settings
        assert end["reason"] == {"say": f"generate.end_{run.stop_reason}"}


def test_a_draw_is_near_another_where_rounding_can_decide_it(bench):
    script = "async ([probs, u]) => (await load('sampling')).draw(Float32Array.from(probs), u).edge"
    for probs, u, is_near in (
        ((0.5, 2e-6, 0.5), 0.500001, True),  # half the line lies on either side of an unlikely token
        ((1.0, 2e-6, 2e-6), 0.999997, False),  # its place is known, however small: all that lies before it is certain
        ((0.5, 0.25, 0.25), 0.6, False),
    ):
        assert (bench.evaluate(script, [probs, u]) < 1.5e-5) == is_near, (probs, u)


def test_the_kernels_are_compiled_from_their_source():
    assert static_kernels.fingerprint() == static_kernels.FINGERPRINT.read_text(encoding="ascii").strip()


def told_rounds(run: Run) -> list[dict]:
    return json.loads(rounds_message("run", run.rounds, run.vocabulary))["rounds"]


def choose(page: Page, **settings: object) -> None:
    page.locator("details").evaluate_all("folds => folds.forEach((fold) => (fold.open = true))")
    for name, value in settings.items():
        field = page.locator(f"[name={name}]")
        field.select_option(value) if name == "drafter" else field.fill(str(value))


def finish(page: Page) -> None:
    page.wait_for_function(f"() => {VIEW}.state === 'finished' && !{VIEW}.busy && !{VIEW}.recorded")


def test_the_page_shows_a_recorded_run_makes_one_and_measures_it(live):
    page = live("?lang=en")
    assert state(page, "recorded") and state(page, "rounds")
    choose(page, temperature=0, max_new_tokens=24, num_draft_tokens=3)
    page.get_by_role("button", name=words()("page.go")).click()
    finish(page)
    assert len(state(page, "text")) > 20 and state(page, "figures")["speedup_low"] <= state(page, "figures")["speedup"]
    assert state(page, "charts")["1"]["rounds"] == len(state(page, "rounds"))


def test_a_run_is_branched_off_at_a_coin_and_read_on_in_another_language(live):
    page = live("?lang=de", viewport={"width": 390, "height": 844}, color_scheme="dark", bypass_csp=True)
    choose(page, temperature=1, max_new_tokens=16)
    page.locator("[name=measured]").uncheck()
    page.get_by_role("button", name=words("de")("page.go")).click()
    finish(page)
    assert_no_sideways_scrolling(page)
    assert violations(page) == []
    before = state(page, "text")
    pressed = {"settings": {"coins": "1.next=0.999"}}
    page.evaluate("detail => document.dispatchEvent(new CustomEvent('specviz-press', { detail }))", pressed)
    page.wait_for_function(f"(before) => {VIEW}.state === 'finished' && {VIEW}.text !== before", arg=before)
    after = state(page, "text")
    page.get_by_role("button", name="English").click()
    expect(page.get_by_role("button", name=words()("page.go"))).to_be_visible()
    assert state(page, "text") == after


def test_a_group_without_a_server_answers_the_five_questions_and_saves_the_same_table(live):
    page = live("?lang=de")
    page.locator("specviz-quiz [part=opener]").click()
    expect(page.locator("specviz-quiz [part=teach]")).to_have_count(0)
    for button in ("begin", "again"):
        page.locator(f"specviz-quiz [part={button}]").click()
        for _ in QUESTIONS:
            page.locator("specviz-quiz .option").first.click()
            page.locator("specviz-quiz [part=next], specviz-quiz [part=done]").click()
    with page.expect_download() as saved:
        page.locator("specviz-quiz [part=save]").click()
    heads, *rows = saved.value.path().read_text(encoding="utf-8").splitlines()
    assert heads == "form,item,before,after,seconds,person" and [row.split(",")[1] for row in rows] == [*QUESTIONS]


def test_a_prompt_that_is_too_long_is_refused_and_the_next_one_runs(live):
    page = live("?lang=en")
    choose(page, prompt=2000 * "ab ", drafter="plain", max_new_tokens=4)
    page.get_by_role("button", name=words()("page.go")).click()
    page.wait_for_function(f"() => {VIEW}.state === 'error'")
    assert "1023" in state(page, "note")
    choose(page, prompt="Once")
    page.get_by_role("button", name=words()("page.go")).click()
    finish(page)


def test_a_folder_that_is_opened_without_a_server_says_what_it_needs(browser, tmp_path):
    for file in ("index.html", "web/colours.css", "web/shared/page.css", "web/static/page.css", "web/static/page.js"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        source = WEB / "static" / "index.html" if file == "index.html" else WEB / file.removeprefix("web/")
        (tmp_path / file).write_bytes(source.read_bytes())
    with browser.new_context() as context:
        page = context.new_page()
        page.goto((tmp_path / "index.html").as_uri())
        for language in ("en", "de"):
            expect(page.locator(f"p:lang({language})")).to_contain_text("python -m http.server")
            expect(page.locator(f"p:lang({language})")).to_be_visible()


def test_a_folder_with_other_things_in_it_is_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(SpecvizError, match="is not empty"):
        write_site(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]
