"""Close-ups: their pictures and sentences say of every token what the record holds, for each drafter and rule."""

import dataclasses
import json
import re
from functools import lru_cache

import pytest
from elements import VIEW, ask, chip, give, unfold
from handmade import VOCABULARY, a_block, a_round, a_run, a_tree, rounds_of
from playwright.sync_api import Page
from tiny import tiny_pair, with_heads

import specviz
from specviz.models.pair import ModelPair
from specviz.records import links
from specviz.records.runs import DraftedToken, NextToken, Round, Run
from specviz.records.settings import DraftParams, SamplingParams
from specviz.views import run_messages as messages

PROMPT = [3, 5, 7, 11, 3, 5]

#: (drafter, rule, branches, temperature); every kind of drafter, and every rule.
WAYS = [
    ("draft_model", "token", 1, 0.8),
    ("draft_model", "token", 1, 0.0),
    ("draft_model", "multi_path", 3, 1.0),
    ("early_exit", "block", 1, 1.0),
    ("medusa", "typical", 3, 1.0),
    ("eagle", "tree", 3, 1.0),
    ("parallel", "typical", 1, 1.0),
    ("prompt_lookup", "block", 1, 1.0),
    ("lookahead", "tree", None, 1.0),
    ("suffix", "token", 1, 1.0),
    (None, "auto", None, 1.0),
]


#: Rules that judge a chain, or one path of several, as a whole.
WHOLE = ("block", "multi_path")


@lru_cache
def pair_of() -> ModelPair:
    """Sixteen tokens, so that random heads are right now and then; none of them ends a text."""
    pair = with_heads(tiny_pair("llama", noise=0.15, vocab=16))
    return dataclasses.replace(pair, eos_ids=frozenset())


@lru_cache
def run_of(drafter: str | None, rule: str, branches: int | None, temperature: float) -> Run:
    return specviz.run(
        pair_of(),
        PROMPT,
        drafter=drafter,
        rule=rule,
        drafting=DraftParams(branches=branches),
        num_draft_tokens=3,
        sampling=SamplingParams(temperature=temperature),
        max_new_tokens=24,
        seed=5,
    )


# The record: where on the line from 0 to 1 a draw fell


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_u_lies_in_the_piece_of_the_token_it_drew(way):
    for one in run_of(*way).rounds:
        following = one.next
        if following.u is None:
            assert (following.below, following.line) == (None, ())
            continue
        assert following.below - 1e-6 <= following.u < following.below + following.prob + 1e-6
        places = {id: (start, end) for id, start, end in following.line}
        assert places[following.id] == pytest.approx((following.below, following.below + following.prob), abs=2e-6)
        # Pieces in the order of ids, none over another, as long as the likeliest tokens' shares.
        ids, starts, ends = zip(*following.line)
        assert list(ids) == sorted(ids) and starts[0] >= 0 and ends[-1] <= 1
        assert all(end <= start + 1e-6 for end, start in zip(ends, starts[1:]))
        drawn_from = next((row.residual for row in one.top if row.residual), ())
        for id, share in drawn_from if one.distance is None else ():
            assert places[id][1] - places[id][0] == pytest.approx(share, abs=3e-6)


# What is shown


def test_a_row_is_sent_exactly_and_a_trace_from_before_the_places_shows_what_it_holds(show):
    one = next(one for one in (a_tree((-1, 0, 1), seed=seed) for seed in range(20)) if one.next.kind == "recovered")
    held = json.loads(messages.rounds_message("run", [one], VOCABULARY))["rounds"][0]
    row, sent = next((row, sent) for row, sent in zip(one.top, held["top"]) if row.residual)
    assert dict(sent["p"]) == pytest.approx(dict(row.p), rel=1e-8)
    assert held["next"]["below"] == pytest.approx(one.next.below, rel=1e-8)
    assert held["next"]["line"] == [list(piece) for piece in one.next.line]
    data = json.loads(json.dumps(a_run((a_round("ard"),)).to_dict()))
    del data["rounds"][0]["next"]["below"], data["rounds"][0]["next"]["line"]
    old = Run.from_dict(data)
    assert (old.rounds[0].next.below, old.rounds[0].next.line) == (None, ())
    page = show(old)
    assert "came up u = 0.38 and gave" in ask(page, 0, "next")
    assert page.locator('[part="residual"]').count() == 1 and page.locator(".whole").count() == 0


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_every_token_is_shown_with_the_numbers_of_its_record(show, way):
    run = run_of(*way)
    page = show(run, run.rule)
    held = _inspected(page, run)
    verdicts = set()
    for one in run.rounds:
        for index, token in enumerate(one.drafted):
            shown = held[one.index, str(index)]
            assert_verdict(shown["say"], token)
            assert_coin(shown, one, token, run)
            assert_block(shown, one, run)
            verdicts.add(token.outcome)
        shown = held[one.index, "next"]
        assert f"‹{one.next.text}›" in shown["say"]
        assert_draw(shown, one.next)
        assert_residual(shown, one, run)
    if run.drafter:
        assert {"accepted", "rejected"} <= verdicts, "the run shows both"


def _inspected(page: Page, run: Run) -> dict[tuple[int, str], dict]:
    """What the close-up says and draws of every token of the run."""
    shown = page.evaluate(
        """() => {
          const view = document.querySelector('specviz-run');
          const root = view.shadowRoot;
          const { rounds } = view;
          const body = root.querySelector('[part=closeup]');
          const plain = (text) => text.replaceAll('\\u00a0', ' ').replaceAll('e\\u2212', 'e-');
          const text = (node) => plain(node.textContent).replaceAll(/[\\u2068\\u2069]/g, '');
          const percent = (node) => node && [parseFloat(node.style.left || 0), parseFloat(node.style.width || 0)];
          const cells = (row) => [...row.querySelectorAll('td')].map(text);
          const places = rounds.flatMap((one, round) => [...one.drafted.keys(), 'next'].map((index) => [round, index]));
          return places.map(([round, index]) => {
            view.choose(round, index);
            const find = (what) => body.querySelector(what);
            const shown = {
              round, index: String(index), say: text(find('[part=say]')),
              u: percent(find('.line .u')), pass: percent(find('.line .pass')),
              drawn: percent(find('.whole .drawn')), draw: percent(find('.whole .u')),
              label: find('.pieces')?.getAttribute('aria-label'),
              bars: find('[part=distribution]')?.getAttribute('aria-label'),
              headings: [...body.querySelectorAll('h4')].map(text),
              block: [...body.querySelectorAll('[part=block] tbody tr')].map(cells),
            };
            return shown;
          });
        }"""
    )
    held = {(one["round"], one["index"]): one for one in shown}
    assert len(held) == sum(len(one.drafted) + 1 for one in run.rounds)
    return held


def assert_verdict(sentence: str, token: DraftedToken) -> None:
    words = {
        "accepted": r"accepted[.,]|is accepted",
        "rejected": r"(: |is )rejected|no coin can pass",
        "discarded": r"never judged|never tried|left out|discarded together with",
    }
    assert re.search(words[token.outcome], sentence), (token, sentence)
    assert f"‹{token.text}›" in sentence


def assert_coin(shown: dict, one: Round, token: DraftedToken, run: Run) -> None:
    """The coin, what it had to stay below, and the division that gave it; none where no coin was flipped."""
    if token.u is None:
        assert shown["u"] is None and shown["pass"] is None and " u = " not in shown["say"]
        return
    assert shown["u"][0] == pytest.approx(100 * token.u, abs=1e-4)
    assert (shown["pass"] or (0, 0))[1] == pytest.approx(100 * token.accept_prob, abs=1e-4)
    sentence = shown["say"]
    assert _number(sentence, " q = ") == near(token.q)
    assert _number(sentence, " p = ") == near(token.p)
    if run.rule in WHOLE:
        assert _number(sentence, "h = ") == near(token.accept_prob)
        assert (_number(sentence, "u = ") < _number(sentence, "h = ")) == (token.u < token.accept_prob)
        return
    if token.p_left is not None:
        assert _number(sentence, "p′ = ") == near(token.p_left)
    if token.accept_prob == 0:
        return
    assert _number(sentence, "u = ") == near(token.u)
    if token.accept_prob == 1:
        assert "any coin passes" in sentence
    elif token.q == 1:
        assert _number(sentence, "u < ") == near(token.accept_prob)
    else:
        p, q, bound = re.search(r"u < (\S+) / (\S+) = (\S+)\. ", sentence).groups()
        assert f"q = {q}" in sentence, "the same q as before"
        assert float(p) / float(q) == pytest.approx(float(bound), abs=0.51 * 10.0 ** -len(bound.partition(".")[2]))
        assert float(bound) == near(token.accept_prob)
        assert (_number(sentence, "u = ") < float(bound)) == (token.outcome == "accepted")
    assert ("after it is discarded" in sentence) == (
        token.outcome == "rejected" and any(other.parent == one.drafted.index(token) for other in one.drafted)
    )


def assert_block(shown: dict, one: Round, run: Run) -> None:
    """Weights and h of the whole draft: h = Z / (Z + 1 − w), at the end w itself (Sun et al. 2024, Alg. 2)."""
    if run.rule not in WHOLE:
        assert shown["block"] == []
        return
    judged = [token for token in one.drafted if token.u is not None]
    weight, last = 1.0, len(judged) - 1
    for place, (token, cells) in enumerate(zip(judged, shown["block"], strict=True)):
        weight = min(1.0, weight * token.p / token.q)
        w, z, h, u, sign = cells
        assert _cell(w) == near(weight)
        assert (_cell(h), _cell(u)) == (near(token.accept_prob), near(token.u))
        assert sign == {"accepted": "✓", "rejected": "✗", "discarded": "┄"}[token.outcome]
        if place == last:
            assert token.accept_prob == pytest.approx(weight, abs=1e-5)
        elif z != "–":
            assert _cell(z) / (_cell(z) + 1 - weight) == pytest.approx(token.accept_prob, abs=0.02)


def assert_draw(shown: dict, following: NextToken) -> None:
    """u falls in the drawn segment of the line, and the sentence gives that segment's ends."""
    if following.u is None:
        assert shown["draw"] is None and " u = " not in shown["say"]
        return
    assert shown["draw"][0] == pytest.approx(100 * following.u, abs=1e-4)
    start, width = shown["drawn"]
    assert (start, width) == pytest.approx((100 * following.below, 100 * following.prob), abs=1e-3)
    for text in (shown["say"], shown["label"]):
        u = _number(text, "u = ")
        first, end = (float(number.rstrip(".")) for number in re.search(r"from ([\d.]+) to ([\d.]+)", text).groups())
        assert first <= u < end or end == 1
        assert (first, u, end) == near((following.below, following.u, following.below + following.prob))
    assert _number(shown["say"], "probability ") == near(following.prob)


def assert_residual(shown: dict, one: Round, run: Run) -> None:
    """Of a chain: what p has over q, divided by its sum, is the residual; the sum is the one in the heading."""
    heading = next((text for text in shown["headings"] if "in all" in text), None)
    row = next((row for row in one.top if row.residual), None)
    chain = all(token.parent == place - 1 for place, token in enumerate(one.drafted))
    if row is None or not chain or run.sampling.greedy or one.distance is not None:
        assert heading is None or not chain
        return
    weight = 1.0
    for token in one.drafted[: one.accepted] if run.rule == "block" else ():
        weight = min(1.0, weight * token.p / token.q)
    p, q = dict(row.p), dict(row.q)
    total = _number(heading, "the excess, ")
    compared = [id for id, _ in row.residual if id in p]
    assert compared, "both lists hold the likeliest"
    for id in compared:
        over = weight * p[id] - q.get(id, 0.0)
        assert over == pytest.approx(dict(row.residual)[id] * total, abs=0.006)


def near(value):
    """A number as it is shown: two decimals, or two digits where it is small."""
    return pytest.approx(value, rel=0.051, abs=0.0051)


def _number(text: str, before: str) -> float:
    return float(re.search(re.escape(before.strip()) + r"\s*([\d.]+(?:e[+-]?\d+)?)", text)[1].rstrip("."))


def _cell(text: str) -> float:
    """A table's number: .31, <.01 (taken as half of it), >.99."""
    return {"<.01": 0.0025, ">.99": 0.9975}.get(text) or float(text)


def test_the_area_of_p_over_q_is_hatched_where_a_token_was_refused_and_nowhere_else(show):
    page = show(a_run((a_round("ard"), a_round("aa", 1))))
    chip(page, 0, 1).click()
    bars = page.locator('[part="distribution"]')
    widths = bars.locator(".bar").evaluate_all(
        """nodes => nodes.map(node => [...node.children].map(
             (bar) => [bar.className.split(' ')[0], bar.style.left, bar.style.width]))"""
    )
    # The record: ‹ other› has p 0.5 and q 0.2, the refused token p 0.25 and q 0.5.
    assert widths[0] == [["p", "0%", "100%"], ["q", "0%", "40%"], ["left", "40%", "60%"]]
    assert widths[1] == [["p", "0%", "50%"], ["q", "0%", "100%"]]
    assert [text for text in bars.locator(".v.left").all_inner_texts() if text] == [".30", "0"]
    for place in ((0, 0), (1, 0), (1, "next")):
        page.keyboard.press("Escape")
        chip(page, *place).click()
        assert page.locator('[part="distribution"] .left').count() == 0


@pytest.mark.parametrize(
    "language, marked, said",
    [("en", "3 read again", "running state was put back"), ("de", "3 noch einmal", "laufende Zustand")],
)
def test_what_a_rejection_cost_a_running_state_is_said_where_it_is_paid(show, language, marked, said):
    paid = dataclasses.replace(a_round("aa", 1), read_again=3)
    page = show(a_run((a_round("ard"), paid)), language=language)
    ask(page, 0, 0)
    assert page.locator("[part=read_again]").count() == 0
    chip(page, 1, 0).click()
    assert said in page.locator("[part=read_again]").inner_text()
    assert page.locator(".sum", has_text=marked).count() == 1


# In German, and by keyboard


def test_the_german_page_says_it_in_german(show):
    page = show(a_run((a_round("ard"), a_round("", 1))), language="de")
    assert "also besteht es, wenn u < 0,25 / 0,50 = 0,50" in ask(page, 0, 1)
    assert "abgelehnt, und alles danach Entworfene wird verworfen" in ask(page, 0, 1)
    assert "angenommen" in ask(page, 0, 0) and "nie geprüft" in ask(page, 0, 2)
    assert "gewöhnlichen Schritt" in ask(page, 1, "next")
    block = show(a_run((a_block("AB", (0.6, 0.9)),)), "block", language="de")
    assert "Der ganze Entwurf wird angenommen" in ask(block, 0, 1)
    tree = show(a_run((a_tree((-1, -1, 0), seed=1),), vocabulary=VOCABULARY), language="de")
    unfold(tree, 0)
    assert "Kandidat 1 von 2 an dieser Stelle" in ask(tree, 0, 0)


# A coin set by hand


def with_someone_to_press(page: Page, run: Run) -> None:
    """The page knows how the run was made, and somebody is there to start another: `heard` is what they are told."""
    give(page, "run", [messages.trace_message([], share=links.share(run), charts={})])
    page.evaluate(
        """() => {
          window.heard = [];
          document.addEventListener('specviz-can-press', (event) => event.preventDefault());
          for (const name of ['specviz-branch', 'specviz-press'])
            document.addEventListener(name, (event) => window.heard.push([name, event.detail]));
        }"""
    )


CHOOSE = f"([round, index]) => {VIEW}.choose(round, index)"

#: Whether a round's word is seen whole in the text's box.
IN_SIGHT = f"""([round, word]) => {{
  const shadow = {VIEW}.shadowRoot, box = shadow.querySelector('[part=text]').getBoundingClientRect();
  const at = shadow.querySelector(`.t[data-round="${{round}}"][data-token="${{word}}"]`).getBoundingClientRect();
  return at.top >= box.top && at.bottom <= box.bottom;
}}"""


def test_the_word_of_a_pinned_token_is_in_sight(show):
    page = show(a_run(rounds_of(*["ard"] * 150)))
    for round, index, word in ((75, 0, 0), (0, "next", 1), (149, 0, 0), (2, 2, 1), (149, "next", 1), (40, 1, 1)):
        page.evaluate(CHOOSE, [round, index])
        assert page.evaluate(IN_SIGHT, [round, word]), (round, index)
    # By a click, and where the keys lead from there.
    page.evaluate(f"() => {VIEW}.release()")
    page.locator("[part=text]").evaluate("node => node.scrollTop = 0")
    chip(page, 41, 0).click()
    assert page.evaluate(IN_SIGHT, [41, 0])
    page.locator("[part=text]").evaluate("node => node.scrollTop = 0")
    page.keyboard.press("ArrowRight")
    assert page.evaluate(IN_SIGHT, [41, 1])


def test_a_coin_set_by_hand_asks_for_the_run_that_follows_from_it(show):
    run = run_of("draft_model", "token", 1, 0.8)
    page = show(run, run.rule)
    one, index = next(
        (one, index)
        for one in run.rounds
        for index, token in enumerate(one.drafted)
        if token.outcome == "accepted" and token.accept_prob < 0.9
    )
    page.evaluate(CHOOSE, [one.index, index])
    assert page.locator('[part="branch"]').count() == 0, "nobody could start a run"
    with_someone_to_press(page, run)
    page.evaluate(CHOOSE, [one.index, index])
    told, go = page.locator('[part="what-if-outcome"]'), page.locator('[part="branch"]')
    assert go.is_disabled() and "accepted, as before" in told.inner_text()
    page.locator('[part="what-if"]').press("End")
    assert told.inner_text() == "With u = 0.999: rejected"
    go.click()
    (_, spot), (_, asked) = page.evaluate("window.heard")
    assert spot == {"round": one.index, "index": index}
    assert asked["settings"] == links.settings_of_run(run) | {"coins": f"{one.index + 1}.{index + 1}=0.999"}
    assert (asked["press"], asked["pair"]) == ("generate", run.pair.name)
    # Another token is drawn by the middle of its piece.
    one = next(one for one in run.rounds if len(one.next.line) > 2)
    page.evaluate(CHOOSE, [one.index, "next"])
    wanted = next(piece for piece in one.next.line if piece[0] != one.next.id)
    other = page.locator('[part="other"]').first
    other.click()
    assert other.inner_text().replace("·", " ") == run.vocabulary[wanted[0]].replace("·", " ")
    go.click()
    coin = page.evaluate("window.heard")[-1][1]["settings"]["coins"]
    assert coin.startswith(f"{one.index + 1}.next=")
    assert wanted[1] < float(coin.partition("=")[2]) < wanted[2]
    # Where no coin was flipped none can be set.
    greedy = run_of("draft_model", "token", 1, 0.0)
    page = show(greedy, greedy.rule)
    with_someone_to_press(page, greedy)
    page.evaluate(CHOOSE, [0, 0])
    assert page.locator('[part="what-if"]').count() == 0
