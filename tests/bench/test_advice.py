"""Advice: measured beside plain decoding, honest where it does not pay, and with flags that servers have."""

import json
import shlex
import threading
import types
from dataclasses import asdict, replace

import pytest
from tiny import tiny_pair, with_heads

from specviz.__main__ import main, parser
from specviz.bench import advising as measuring
from specviz.bench import benchmark
from specviz.bench.advice import Load, Offer, load_of, may_be_best, ranked, server_flags
from specviz.bench.benchmark import advised_chains
from specviz.bench.contest import INTERRUPTED, Row
from specviz.bench.contestants import TimedRun
from specviz.commands import advise
from specviz.drafters import DRAFTERS
from specviz.drafters.copying import Suffix
from specviz.drafters.registry import servers_of
from specviz.models import catalog
from specviz.models.loading import load_pair
from specviz.models.pair_passes import PairPasses
from specviz.parts.dflash import DFlashHead
from specviz.parts.dspark import DSparkHead
from specviz.parts.eagle import Eagle3Head, PEagleHead
from specviz.parts.gemma_assistant import GemmaAssistant
from specviz.parts.mtp import MtpFile, MtpModules
from specviz.records.errors import SpecvizError
from specviz.records.settings import RunSettings
from specviz.records.words import joined, words
from specviz.theory.roofline import BatchPoint, BatchTimes
from specviz.theory.statistics import Ratio
from specviz.ui import advice as page
from specviz.ui.deployment import Deployment
from specviz.ui.device import PairName
from specviz.ui.line import Visit
from specviz.ui.orders import Order
from specviz.ui.runner import Runner
from specviz.views.terminal import advice as in_words
from specviz.views.terminal import as_table

#: What a shell and Markdown would like to carry out.
HOSTILE = "draft'; rm -rf $HOME | <b>*x*</b>"


def offer(
    mode: str,
    value: float,
    low: float | None = None,
    gamma: int = 4,
    draft: str | None = None,
    temperature: float = 0.0,
) -> Offer:
    """low: the lower end of its interval; None: there is none."""
    ratio = Ratio(value) if low is None else Ratio(value, low, value**2 / low)
    row = Row(
        tokens_per_second=100.0,
        spread=(90.0, 110.0),
        speedup_measured=value,
        acceptance_length=2.5,
        title=f"{mode} γ={gamma}",
        engine="specviz",
        mode=mode,
        num_draft_tokens=gamma,
        temperature=temperature,
        repeats=1,
        prompts=1,
        speedup_interval=None if low is None else (ratio.low, ratio.high),
        tokens_a_pass=Ratio(2.5),
    )
    return Offer(row, 80.0, draft)


def told(*offers: Offer, language: str = "en"):
    told = asdict(in_words(offers, "a machine", "a pair", "plain passes", 0.0, "on it"))
    return types.SimpleNamespace(**words(language).translated(told))


def test_what_can_be_counted_on_comes_first():
    lucky, unknown = offer("suffix", 3.0, 1.1), offer("mtp", 4.0)
    steady, slower = offer("eagle", 1.5, 1.4), offer("medusa", 1.2, 1.15)
    assert ranked([lucky, unknown, slower, steady]) == [steady, slower, lucky, unknown]


SAME = [offer("eagle", value, value / 1.1, gamma) for value, gamma in ((1.5, 2), (1.55, 4), (1.45, 6), (1.0, 8))]


@pytest.mark.parametrize(
    ("offers", "says", "never", "flags"),
    [
        ([offer("eagle", 1.5, 1.4)], ("Yes: “EAGLE” with γ = 4 is 1.40 to 1.61 times",), "equally good", 3),
        ([offer("eagle", 1.5, 0.9)], ("Not decided: ", "0.90 to 2.50 times"), "Yes", 3),
        ([offer("eagle", 0.9, 0.8)], ("No: nothing here", "0.80 to 1.01 times"), "Yes", 0),
        # No loss, and no gain that anybody would notice.
        ([offer("eagle", 1.02, 0.98)], ("No: nothing here",), "Yes", 0),
        # The best that can be counted on is alike; another one may pay.
        ([offer("eagle", 1.0, 0.99), offer("mtp", 1.5, 0.9)], ("Not decided: “MTP”",), "No:", 3),
        (SAME, ("Yes", "γ = 2, 4, 6 are"), "No", 3),
        (SAME[1::2], ("γ = 4",), "equally good", 3),
        # A length in between is worse, and of another one too little is known.
        ([*SAME[::2], offer("eagle", 1.1, 1.09, 4), offer("eagle", 1.5, None, 8)], ("γ = 2, 6 are",), "No", 3),
    ],
)
def test_the_sentence_says_no_more_than_was_measured_and_flags_are_for_what_pays(offers, says, never, flags):
    said = told(*offers)
    sentence = f"{said.sentence} {said.more}"
    assert all(one in sentence for one in says) and not sentence.startswith(never)
    assert never not in sentence and len(said.flags) == flags


def test_a_server_is_not_told_to_draft_in_as_few_bits_as_its_file_has():
    def in_bits(stored: str | None) -> Offer:
        found = offer("quantised_self", 1.6, 1.5)
        return replace(found, row=replace(found.row, bits=4), stored=stored)

    lookup = offer("prompt_lookup", 1.2, 1.1, 6)
    for stored in ("Q4_1", "IQ4_XS", "Q3_K_M"):
        said = told(in_bits(stored), lookup)
        assert said.sentence.startswith("Yes: “Quantised target") and f"as {stored}" in said.load
        assert "is “Prompt lookup” with γ = 6" in said.load and said.flags_head.startswith("“Prompt lookup” with γ = 6")
        alone = told(in_bits(stored), offer("medusa", 0.5, 0.45), offer("lookahead", 1.5, 1.4))
        assert "Of what servers have" in alone.load and not alone.flags and not alone.flags_head
    for stored in (None, "Q8_0", "F16"):
        said = told(in_bits(stored), lookup)
        assert not said.load and "TARGET_IN_FEW_BITS" in said.flags[0][1]


def test_the_baseline_stands_in_the_sentence_and_at_its_place_in_the_table():
    said = told(offer("eagle", 1.5, 1.4), offer("medusa", 0.9, 0.8))
    assert "as plain decoding (80 tokens/s) on it, on a machine" in said.sentence
    assert [row[0] for row in said.rows] == ["EAGLE", "Plain decoding", "Medusa"]
    assert said.rows[1][2] == "1.00×" and said.rows[1][5] == "80"


def test_speeds_stand_beside_those_of_the_same_minutes():
    """A machine slows down while it measures: a speed beside one of another hour would not fit the speedup."""
    said = told(offer("eagle", 1.5, 1.4), replace(offer("medusa", 1.3, 1.2), plain=70.0))
    assert [row[5] for row in said.rows] == ["80 → 100", "70 → 100", "80"]


def test_what_may_be_the_best_is_named_and_how_to_measure_on():
    steady, lucky, slow = offer("lookahead", 1.06, 1.02), offer("suffix", 1.71, 0.61), offer("medusa", 0.9, 0.7)
    said = in_words([steady, lucky, slow], "a machine", "a pair", "plain", 0.0, "on it", longer="Go on.")
    sentence = words().translated(joined([said.sentence, said.more], " "))
    assert said.undecided and sentence.endswith("it may be the best. Go on.")
    assert sentence.startswith("Yes: “Lookahead”") and "“Suffix” with γ = 4 (0.61 to 4.79 times) was faster" in sentence
    assert "Medusa" not in sentence
    decided = in_words([steady, slow], "a machine", "a pair", "plain", 0.0, "on it", longer="Go on.")
    assert not decided.undecided and "Go on" not in words().translated(decided.more)


def test_what_may_be_better_stands_in_the_table_with_the_length_that_is_named():
    best, counted, lucky = offer("eagle", 2.0, 1.9), offer("suffix", 2.1, 1.2, 2), offer("suffix", 2.6, 0.9, 6)
    assert may_be_best([lucky, best, counted], best) == [counted]
    assert may_be_best([offer("suffix", 1.8, 1.2, 2), lucky, best], best) == []


def test_the_load_up_to_which_it_pays_follows_from_passes_over_many_requests():
    def times(*seconds: tuple[int, int, float]) -> BatchTimes:
        points = tuple(BatchPoint("target", requests, width, one, 1) for requests, width, one in seconds)
        setup = {"target": "t", "draft": None, "context": 8, "device": "cpu", "dtype": "float32", "kind": "plain"}
        return BatchTimes(**setup, threads=1, batches=(1, 4, 16), points=points, fraction=1.0)

    # 2.5 tokens a pass: a pass over 5 tokens of each request may take up to 2.5 times as long as one over 1.
    best = offer("suffix", 1.5, 1.4)
    growing = [(1, 1, 1.0), (1, 5, 1.1), (4, 1, 1.2), (4, 5, 2.0), (16, 1, 2.0), (16, 5, 6.0)]
    assert load_of(best, times(*growing)) == Load(4, 16)
    assert load_of(best, times(*growing[:4])) == Load(4, None), "the rest was left out"
    assert load_of(best, times((1, 1, 1.0), (1, 5, 3.0), (4, 1, 1.0), (4, 5, 3.0))) == Load(None, 4)
    assert load_of(best, times((1, 1, 1.0), (1, 3, 1.0))) is None, "no pass was wide enough"
    said = in_words([best], "a machine", "a pair", "plain passes", 0.0, "on it", times=times(*growing)).load
    assert "pays up to 4 requests at once, but not with 16" in words().translated(said)


def test_every_drafter_has_flags_or_is_said_to_have_none():
    for name in DRAFTERS:
        vllm, sglang, llama = server_flags(offer(name, 1.5, gamma=3))
        assert [one.server for one in (vllm, sglang, llama)] == ["vLLM", "SGLang", "llama.cpp"]
        if vllm.flags:
            name, value = shlex.split(vllm.flags)
            assert name == "--speculative-config" and json.loads(value)["num_speculative_tokens"] == 3
        if sglang.flags:
            assert sglang.flags.startswith("--speculative-algorithm ")
            assert sglang.flags.endswith("--speculative-num-draft-tokens 4")
        assert llama.flags is None or "--spec-type" in llama.flags
    assert [one.flags for one in server_flags(offer("lookahead", 2.0))] == [None] * 3
    # A model's name is one word for a shell.
    vllm, sglang, llama = server_flags(offer("draft_model", 1.5, draft=HOSTILE))
    assert json.loads(shlex.split(vllm.flags)[1])["model"] == HOSTILE
    assert HOSTILE in shlex.split(sglang.flags) and f"{HOSTILE}.gguf" in shlex.split(llama.flags)
    (other,) = {one.notes[0] for one in server_flags(replace(offer("draft_model", 1.5), translated=True))}
    assert other == "tokenizers"
    # A published part has the flags of its own format.
    pair = with_heads(tiny_pair("llama"))
    parts = pair.parts | {"parallel": object.__new__(PEagleHead)}
    servers = servers_of(replace(pair, parts=parts), ["eagle", "parallel"])
    flags = {name: server_flags(replace(offer(name, 1.5, gamma=3), servers=one)) for name, one in servers.items()}
    published, own = (json.loads(shlex.split(flags[name][0].flags)[1]) for name in ("parallel", "eagle"))
    assert published["method"] == "eagle3" and published["parallel_drafting"] and own


def test_flags_have_drafts_drawn_where_drawn_ones_were_measured():
    def flags(mode: str, temperature: float) -> list[bool]:
        told = "probabilistic", "--speculative-use-rejection-sampling", "--spec-draft-sampling probabilistic"
        found = server_flags(offer(mode, 1.5, temperature=temperature))
        return [what in (one.flags or "") for what, one in zip(told, found, strict=True)]

    assert flags("draft_model", 0.0) == [False] * 3 and flags("draft_model", 0.8) == [True, False, True]
    assert flags("mtp", 0.8) == [True] * 3
    assert [one.notes for one in server_flags(offer("draft_model", 1.5, draft="d", temperature=0.8))][2] == (
        "gguf",
        "drawn",
    )
    # What is copied, or comes from heads that vLLM never draws from, is not drawn there either.
    assert flags("prompt_lookup", 0.8) == [False] * 3 and not flags("medusa", 0.8)[0]


def test_sglang_is_told_no_steps_of_drafts_made_in_one_and_to_draw_only_what_it_can():
    for part, steps, counted, draws in (
        (Eagle3Head, True, True, True),
        (GemmaAssistant, True, True, False),
        (DFlashHead, False, True, False),
        (DSparkHead, False, False, False),
    ):
        _, sglang, _ = server_flags(replace(offer("mtp", 1.5, temperature=0.8), servers=part.servers))
        assert ("--speculative-num-steps" in sglang.flags) == ("--speculative-eagle-topk" in sglang.flags) == steps
        assert ("--speculative-num-draft-tokens" in sglang.flags) == counted
        assert ("--speculative-use-rejection-sampling" in sglang.flags) == draws


def test_servers_draft_with_modules_of_the_target_and_with_assistants_and_not_with_modules_in_a_file():
    for part in (GemmaAssistant, MtpModules):
        _, sglang, _ = server_flags(replace(offer("mtp", 1.5), servers=part.servers))
        assert sglang.flags.startswith("--speculative-algorithm NEXTN")
        assert ("--speculative-draft-model-path" in sglang.flags) == (part is not MtpModules)
    assert {one.flags for one in server_flags(replace(offer("mtp", 1.5), servers=MtpFile.servers))} == {None}


def test_a_block_drafter_narrower_than_its_target_is_for_vllm_alone():
    def served(width: int) -> list[bool]:
        part = types.SimpleNamespace(servers=DSparkHead.servers, sizes=types.SimpleNamespace(target_width=48))
        part.config = types.SimpleNamespace(hidden_size=width)
        names = DSparkHead.served_as(part)
        return [one.flags is not None for one in server_flags(replace(offer("parallel", 1.5), servers=names))]

    assert served(24) == [True, False, False] and served(48) == [True, True, True]


@pytest.fixture
def short(pair, monkeypatch) -> list[str]:
    """Few and short runs of the pair; what is promised does not depend on their length. Returns the options."""
    monkeypatch.setattr("specviz.commands.pairs.load", lambda *asked: pair)
    monkeypatch.setattr(benchmark, "ADVICE", replace(benchmark.ADVICE, gammas=(2,), copied_gammas=(2,)))
    return ["advise", "--max-new-tokens", "6"]


def test_the_command_measures_what_is_at_hand(pair, short, monkeypatch, capsys):
    monkeypatch.setattr(catalog, "drafts_at_hand", lambda target: [catalog.CATALOG[0]] if target == "t" else [])
    options = parser().parse_args([*short, "--target", "t", "--temperature", "0.8"])
    loaded = [replace(pair, passes=PairPasses())]
    measured = advise.Measured()
    advise.measure(options, pair, lambda name: loaded[0], measured)
    offers, rows = measured.offers, measured.rows
    assert loaded[0].target is None and pair.target is not None, "two pairs more would not fit everywhere"
    own, others = [one for one in offers if one.draft is None], [one for one in offers if one.draft]
    assert {one.mode for one in own} == {one.mode for one in advised_chains(pair)} == {row.mode for row in rows}
    assert [(one.mode, one.draft) for one in others] == [("draft_model", catalog.CATALOG[0].draft)]
    assert all(one.row.ratio.value > 0 for one in offers)
    first, *_ = capsys.readouterr().err.splitlines()
    assert first.startswith("about ") and first.endswith(" s left, plain")
    text = as_table(in_words(offers, HOSTILE, "a\x1b[31m pair", "plain", 0.8, "on it"), words())
    assert "\x1b" not in text and measured.times is not None
    assert any(line.startswith("drafter") for line in text.splitlines())


def test_the_command_prints_the_tables_the_sentence_and_the_flags(short, capsys, tmp_path):
    lines = [{"prompt": "Once upon a time", "domain": "stories"}, {"prompt": "def", "domain": "co\x1bde"}]
    (tmp_path / "work.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert main([*short, "--prompts", str(tmp_path / "work.jsonl")]) == 0
    sentence, *flags, table, domains, about = capsys.readouterr().out.strip().split("\n\n")
    assert table.startswith("drafter") and "Draft model" in table
    assert domains.startswith("domain") and "co␛de" in domains and "stories" in domains
    assert "γ = " in sentence and "tiny llama (float32) at temperature 0" in about
    assert bool(flags) == (not sentence.startswith("No:"))


@pytest.mark.parametrize(
    "order, module, end, status",
    [
        ("advise", "advise", KeyboardInterrupt(), 130),
        ("bench", "measure_all", SpecvizError("It is full.", "target"), 2),
    ],
)
def test_whatever_ends_it_what_was_measured_is_told(short, monkeypatch, capsys, tmp_path, order, module, end, status):
    whole = getattr(measuring, module)

    def ended(*given):
        for event in whole(*given):
            yield event
            if isinstance(event, TimedRun) and event.number:
                raise end

    monkeypatch.setattr(measuring, module, ended)
    (tmp_path / "work.txt").write_text("Once upon a time")
    file = tmp_path / "work.json"
    asked = ["--prompts", str(tmp_path / "work.txt")] + ["--json", str(file)] * (order == "bench")
    assert main([order, *short[1:], *asked]) == status
    out = capsys.readouterr().out
    assert INTERRUPTED in out
    # The table comes first; advice begins with its verdict.
    table = out if order == "bench" else out[out.index("\n\ndrafter") + 2 :]
    assert "drafter" in table.splitlines()[0]
    if order == "bench":
        report = json.loads(file.read_text())
        assert report["interrupted"] and report["rows"]


def test_a_drafter_that_fails_is_a_fault_and_the_advice_is_about_the_others(short, monkeypatch, capsys):
    def failing(drafter, *given):
        raise IndexError("out of range")

    monkeypatch.setattr(Suffix, "propose", failing)
    assert main(short) == 1
    out, err = capsys.readouterr()
    assert "✗ suffix γ=2: it failed with IndexError: out of range" in out and "✗ suffix" in err
    assert "Prompt lookup" in out and not any(line.startswith("Suffix") for line in out.splitlines())


@pytest.mark.parametrize("named", ["medusa", "suffix,medusa"])
def test_a_drafter_that_was_named_and_cannot_draft_is_refused_with_its_reason(short, named, tmp_path, capsys):
    (tmp_path / "work.txt").write_text("Once upon a time")
    asked = ["--prompts", str(tmp_path / "work.txt"), "--only", named]
    assert main(["bench", *short[1:], *asked]) == 2
    assert "no trained medusa" in capsys.readouterr().err


@pytest.mark.parametrize("minutes", ["0", "-1", "nan", "inf", "soon"])
@pytest.mark.parametrize("command", ["advise", "check"])
def test_time_is_a_number_of_minutes(command, minutes, capsys):
    with pytest.raises(SystemExit):
        main([command, f"--minutes={minutes}"])
    assert f"'{minutes}' is not a number of minutes above 0" in capsys.readouterr().err


def test_only_a_draft_model_that_was_downloaded_is_at_hand(monkeypatch):
    entry, here = catalog.CATALOG[0], []
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda repo, name: "file" if repo in here else None)
    assert catalog.drafts_at_hand(entry.target) == []
    here.append(entry.draft)
    assert catalog.drafts_at_hand(entry.target) == [entry] and catalog.drafts_at_hand("another") == []


# On the page


@pytest.fixture
def runner(pair) -> Runner:
    store = types.SimpleNamespace(get=lambda name: pair, loaded=lambda name: pair, starting_pair=pair)
    return Runner(store, Deployment.from_environment())


ORDER = Order(PairName(draft=(HOSTILE,)), RunSettings("Once upon", max_new_tokens=6, seed=5))


def page_advice(runner: Runner, prompts: str = "", stop_at: str = "nothing") -> list[dict]:
    told, halt = [], threading.Event()
    for text in page.advise(runner, ORDER, prompts, halt, words()):
        told.append(words().translated(json.loads(text)))
        if stop_at in told[-1]["text"]:
            halt.set()
    return told


def test_the_page_says_what_the_command_says_and_that_it_was_stopped(runner, pair, monkeypatch):
    monkeypatch.setattr(pair.draft, "name_or_path", HOSTILE)
    chains = [
        one for one in advised_chains(pair) if one.mode in ("draft_model", "suffix") and one.num_draft_tokens == 4
    ]
    monkeypatch.setattr(benchmark, "advised_chains", lambda pair, base: chains)
    *going, last = page_advice(runner)
    assert any(line["text"].startswith("100\u00a0% · last, passes over many") for line in going)
    assert last["head"][:2] == ["drafter", "γ"] and len(last["rows"]) == len(chains) + 1
    assert last["sentence"] and bool(last["use"]) == bool(last["flags"]) == (not last["sentence"].startswith("No:"))
    assert "on the prompt in the controls" in last["sentence"] and "(float32)" in last["about"]
    assert not last["use"] or last["use"].items() >= {"num_draft_tokens": 4, "branches": 1}.items()
    # On prompts of one's own, by domain.
    prompts = "\n".join(json.dumps({"prompt": text, "domain": text}) for text in ("One", "Two"))
    on_own = page_advice(runner, prompts)[-1]
    assert {"all", "One", "Two"} <= {row[0] for row in on_own["domains"]} and "on your 2 prompts" in on_own["sentence"]
    stopped = page_advice(runner, stop_at="\u00a0s left")[-1]
    assert (stopped["phase"], stopped["text"]) == ("stopped", words()("advice.nothing"))


def test_the_same_question_is_measured_longer_where_something_was_left_open_and_no_other_one(runner, monkeypatch):
    asked = []

    def advise(runner, order, prompts, halt, say, longer):
        asked.append(longer)
        yield "told"
        return order.settings.prompt == ORDER.settings.prompt

    monkeypatch.setattr(page, "advise", advise)
    undecided, visit = {}, Visit("me", threading.Event())
    for order, prompts in ((ORDER, ""), (ORDER, ""), (ORDER.but(prompt="Else"), ""), (ORDER, ""), (ORDER, "Mine")):
        assert list(page.answer(runner, visit, order, prompts, undecided, words())) == ["told"]
    assert asked == [False, True, False, False, False]


def test_a_page_allows_the_advice_on_the_embedded_pair(runner):
    modes = {one.mode for one in page.chains_of(runner, load_pair(device="cpu"), ORDER)}
    assert modes >= {"draft_model", "eagle", "mtp", "hybrid"}
