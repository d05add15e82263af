"""Texts as people bring them, wrapped, nested, cut off, mixed and from other locales: each gives the true counts, or
is refused. Seeded, so that a failure can be repeated."""

import gzip
import json
import random
import re
import textwrap
from collections import Counter
from dataclasses import dataclass

import pytest
from refusal import refused

from specviz.foreign.metrics import read_metrics
from specviz.records.errors import SpecvizError
from specviz.records.files import decoded
from specviz.records.prompts import read_prompts, text_of


@dataclass(frozen=True)
class Truth:
    """Passes that drafted γ tokens each, by how many they accepted."""

    kept: tuple[int, ...]  # [j]: passes that accepted j of them

    @property
    def passes(self) -> int:
        return sum(self.kept)

    @property
    def gamma(self) -> int:
        return len(self.kept) - 1

    @property
    def drafted(self) -> int:
        return self.passes * self.gamma

    @property
    def at(self) -> list[int]:
        return [sum(self.kept[place + 1 :]) for place in range(self.gamma)]

    @property
    def accepted(self) -> int:
        return sum(self.at)

    @property
    def length(self) -> float:
        return 1 + self.accepted / self.passes

    def shares(self, digits: int = 3, unit: int = 1) -> list[str]:
        return [f"{unit * count / self.passes:.{digits}f}" for count in self.at]


def drawn(chance: random.Random) -> Truth:
    return Truth(tuple(chance.randrange(1, chance.choice([9, 200, 4000])) for _ in range(chance.randrange(3, 7))))


def vllm_log(truth: Truth) -> str:
    return (
        "(APIServer pid=7) INFO 11-12 10:00:00 [metrics.py:96] SpecDecoding metrics: Mean acceptance length: "
        f"{truth.length:.2f}, Accepted throughput: 1.00 tokens/s, Drafted throughput: 12.90 tokens/s, Accepted: "
        f"{truth.accepted} tokens, Drafted: {truth.drafted} tokens, Per-position acceptance rate: "
        f"{', '.join(truth.shares())}, Avg Draft acceptance rate: {100 * truth.accepted / truth.drafted:.1f}%\n"
    )


def old_vllm_log(truth: Truth) -> str:
    return (
        f"INFO 05-12 10:00:00 [metrics.py:82] SpecDecoding metrics: Draft acceptance rate: "
        f"{100 * truth.accepted / truth.drafted:.1f}%, Mean acceptance length: {truth.length:.2f}, Accepted: "
        f"{truth.accepted} tokens, Drafted: {truth.drafted} tokens, Per-position acceptance rate: "
        f"{', '.join(truth.shares())}\n"
    )


def llama_log(truth: Truth) -> str:
    return (
        f"0.16.519.195 I slot print_timing: id  0 | task 42 | draft acceptance = {truth.accepted / truth.drafted:.5f} "
        f"({truth.accepted:5} accepted / {truth.drafted:5} generated), mean acceptance length = {truth.length:5.2f}, "
        f"acceptance rate per position = ({', '.join(truth.shares())})\n"
    )


def llama_statistics(truth: Truth) -> str:
    return (
        f"0.16.519.216 I statistics        draft-mtp: #calls(b,g,a) =    2 {truth.passes:6} {truth.passes:6}, #gen "
        f"drafts = {truth.passes:6}, #acc drafts = {truth.at[0]:5}, #gen tokens = {truth.drafted:6}, #acc tokens = "
        f"{truth.accepted:5}, #mean acc len = {truth.length:.2f}, #acc rate/pos = ({', '.join(truth.shares())}), "
        "dur(b,g,a) = 0.004, 808.560, 0.264 ms\n"
    )


def scrape(truth: Truth) -> str:
    counts = {"drafts": truth.passes, "draft_tokens": truth.drafted, "accepted_tokens": truth.accepted}
    lines = [f'num_{name}_total{{engine="0",model_name="m"}} {count}.0' for name, count in counts.items()]
    for place, count in enumerate(truth.at):
        lines.append(f'num_accepted_tokens_per_pos_total{{engine="0",model_name="m",position="{place}"}} {count}.0')
    return "".join(f"vllm:spec_decode_{line}\n" for line in lines) + "# HELP vllm:other\n"


def llama_scrape(truth: Truth) -> str:
    """llama.cpp has no labels but the position, and whole numbers without a point."""
    return re.sub(r'engine="0",model_name="m",?', "", scrape(truth)).replace("vllm:", "llamacpp:").replace(".0\n", "\n")


def query_table(truth: Truth) -> str:
    return scrape(truth).replace("} ", "} | ")


def bench_table(truth: Truth) -> str:
    figures = {"Acceptance rate (%)": f"{100 * truth.accepted / truth.drafted:.2f}"}
    figures |= {"Acceptance length": f"{truth.length:.2f}", "Drafts": truth.passes, "Draft tokens": truth.drafted}
    figures |= {"Accepted tokens": truth.accepted, "Per-position acceptance (%)": ""}
    figures |= {f"  Position {place}": share for place, share in enumerate(truth.shares(2, 100))}
    rows = "".join(f"{name + ':':<40} {value:<10}\n" for name, value in figures.items())
    return f"{' Serving Benchmark Result ':=^50}\n{rows}{'=' * 50}\n"


def example(truth: Truth) -> str:
    counts = {"num_drafts": truth.passes, "num_draft_tokens": truth.drafted, "num_accepted_tokens": truth.accepted}
    rows = [*(f"{name}: {count}" for name, count in counts.items()), f"mean acceptance length: {truth.length:.2f}"]
    rows += [f"acceptance at token {place}: {share}" for place, share in enumerate(truth.shares(2))]
    return "\n".join(["total_num_output_tokens: 8000", *rows]) + "\n"


def get_metrics(truth: Truth) -> str:
    labels = "labels={'engine': '0', 'model_name': 'm'}"
    counts = {"drafts": truth.passes, "draft_tokens": truth.drafted, "accepted_tokens": truth.accepted}
    counters = [f"Counter(name='vllm:spec_decode_num_{name}', {labels}, value={n})" for name, n in counts.items()]
    vector = f"Vector(name='vllm:spec_decode_num_accepted_tokens_per_pos', {labels}, values={truth.at})"
    return f"[{', '.join([*counters, vector])}]\n"


def answer(truth: Truth) -> str:
    counts = {"num_spec_steps": truth.passes, "num_accepted_draft_tokens": truth.accepted}
    counts |= {"num_draft_tokens": truth.drafted, "num_spec_tokens": truth.gamma}
    counts |= {"acceptance_histogram": list(truth.kept)}
    return json.dumps({"id": "a", "choices": [], "metrics": {"speculative_decoding": counts}}) + "\n"


ENGINES = [vllm_log, old_vllm_log, llama_log, llama_statistics, scrape, query_table, bench_table, example]
ENGINES += [llama_scrape, get_metrics, answer]


def wrapped(text: str, chance: random.Random) -> str:
    width, trimmed = chance.randrange(50, 160), chance.random() < 0.5
    parts = (line[at : at + width] for line in text.split("\n") for at in range(0, len(line) or 1, width))
    return "\n".join(part.rstrip() if trimmed else part for part in parts)


def filled(text: str, chance: random.Random) -> str:
    width = chance.randrange(50, 160)
    return "\n".join("\n".join(textwrap.wrap(line, width)) for line in text.split("\n"))


def nested(text: str, chance: random.Random) -> str:
    for _ in range(chance.randrange(1, 4)):
        lines = text.splitlines(keepends=True)
        text = chance.choice(
            [
                "".join(json.dumps({"log": line, "stream": "stderr"}) + "\n" for line in lines),
                "".join(json.dumps({"MESSAGE": line.rstrip(), "PRIORITY": "6"}) + "\n" for line in lines),
                "".join(json.dumps({"MESSAGE": list(line.encode())}) + "\n" for line in lines),
                json.dumps([{"levelname": "INFO", "message": line} for line in lines], indent=2),
                json.dumps({"log": {"entries": [{"response": {"content": {"mimeType": "x", "text": text}}}]}}),
                json.dumps({"data": {"result": [{"stream": {}, "values": [["17", line] for line in lines]}]}}),
            ]
        )
    return text


def cut(text: str, chance: random.Random) -> str:
    return text[: chance.randrange(len(text))]


def grouped(text: str, chance: random.Random) -> str:
    separator = chance.choice([",", ".", " ", "\u00a0", "\u202f", "'", "’"])
    return re.sub(r"(?<![\d.])\d{4,}(?![\d.]*\d)", lambda match: f"{int(match[0]):,}".replace(",", separator), text)


def with_commas(text: str, _: random.Random) -> str:
    return re.sub(r"(?<=\d)\.(?=\d)", ",", text)


def coloured(text: str, _: random.Random) -> str:
    return "".join(f"\x1b[36m{line}\x1b[0m\n" for line in text.splitlines())


def quoted(text: str, _: random.Random) -> str:
    return "".join(f"> {line}\r\n" for line in text.splitlines())


def shipped(text: str, chance: random.Random) -> str:
    data = text.encode(chance.choice(["utf-8-sig", "utf-16", "utf-8"]))
    return decoded(gzip.compress(data) if chance.random() < 0.5 else data)


CHANGES = [wrapped, filled, nested, cut, grouped, with_commas, coloured, quoted, shipped]


def misread(text: str, truths: list[Truth]) -> tuple[list[str], bool]:
    """The figures that are none of these truths', and whether all were read."""
    try:
        found = read_metrics(text).requests
    except SpecvizError:
        return [], False
    wrong = []
    for one in found:
        fits = [
            truth
            for truth in truths
            if one.passes in (None, truth.passes)
            and one.accepted in (None, truth.accepted)
            and one.drafted in (None, truth.drafted)
            and (one.tokens_per_pass is None or abs(one.tokens_per_pass - truth.length) < 0.0051)
            and (one.tally is None or one.tally.accepted_at == truth.at)
            and (one.outcomes is None or _kept(one) == {n: count for n, count in enumerate(truth.kept) if count})
        ]
        wrong += [] if fits else [f"{one}"]
    wrong += [f"{len(found)} entries"] if len(found) > len(truths) else []
    return wrong, len(found) == len(truths) and all(one.accepted is not None for one in found)


def _kept(one) -> dict[int, int]:
    kept: Counter[int] = Counter()
    for (accepted, _), count in one.outcomes.items():
        kept[accepted] += count
    return dict(kept)


@pytest.mark.parametrize("change", CHANGES)
def test_a_hostile_text_gives_the_true_counts_or_is_refused(change):
    chance, all_read = random.Random(change.__name__), 0
    for number in range(110):
        truth = drawn(chance)
        text = ENGINES[number % len(ENGINES)](truth)
        around = chance.choice([nested, coloured, shipped, lambda text, _: text])
        # What is cut off ends without a line's end.
        hostile = change(around(text, chance), chance) if change is cut else around(change(text, chance), chance)
        wrong, whole = misread(hostile, [truth])
        assert not wrong, f"{number}: {wrong}\n{truth}\n{hostile}"
        all_read += whole
    # Refusing everything would be right, too.
    assert all_read >= {cut: 22, grouped: 28, with_commas: 26, wrapped: 80, filled: 90, nested: 90}.get(change, 105)


#: Three shares of which every digit counts.
ONE = Truth((1310, 412, 1037, 2244))


@pytest.mark.parametrize("engine", ENGINES)
def test_a_text_that_is_cut_off_anywhere_or_wrapped_at_any_width_gives_no_wrong_figure(engine):
    text = engine(ONE)
    cuts = [text[:place] for place in range(len(text))]
    widths = range(41, 161)
    wraps = ["\n".join(text[at : at + width] for at in range(0, len(text), width)) for width in widths]
    # Lines of another width among them hide the terminal's.
    wraps += [f"{wide}\n{wrap}" for wide, wrap in zip(["x" * 500, "y" * 170] * len(widths), wraps)]
    for hostile in cuts + (wraps if text.count("\n") == 1 else []):
        assert not misread(hostile, [ONE])[0], hostile


def test_texts_of_several_engines_are_told_apart():
    chance = random.Random(0)
    for _ in range(40):
        # llama.cpp's statistics take the place of its lines about single requests, of which they are the sum.
        engines = chance.sample(
            [engine for engine in ENGINES if engine not in (llama_log, query_table, get_metrics)], 3
        )
        truths = [drawn(chance) for _ in engines]
        wrong, whole = misread("".join(engine(truth) for engine, truth in zip(engines, truths)), truths)
        assert not wrong and whole, (engines, wrong)


def test_a_models_own_words_are_no_log():
    text = vllm_log(drawn(random.Random(0)))
    words = [{"choices": [{"message": {"role": "assistant", "content": text}}]}, {"messages": [{"content": text}]}]
    for value in (*words, {"prompt": text}, {"choices": [{"text": text, "message": text}]}):
        with refused("metrics", "No speculative metrics found"):
            read_metrics(json.dumps(value))


# --- prompts ----------------------------------------------------------------------------------------------------------

WORDS = ["Once", "upon", 'a "time"', "there,", "was", "[a]", "{king}", "it's", "0.5", "naïve", "=", "# not", "`code`"]


def turns(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}, {"role": "assistant", "content": "Yes."}]


def share_gpt(text: str) -> dict:
    speakers = [("system", "Be kind."), ("human", text), ("gpt", "Yes."), ("human", "And then?")]
    return {"id": "x", "conversations": [{"from": speaker, "value": said} for speaker, said in speakers]}


#: Files of prompts, and whether they are read.
FILES = {
    "lines": (lambda texts, _: "\n\n".join(texts), True),
    "array": (lambda texts, indent: json.dumps(texts, indent=indent), True),
    "strings": (lambda texts, _: "\n".join(map(json.dumps, texts)), True),
    "objects": (lambda texts, indent: "\n".join(json.dumps({"prompt": one}, indent=indent) for one in texts), True),
    "array of objects": (lambda texts, indent: json.dumps([{"prompt": one} for one in texts], indent=indent), True),
    "messages": (lambda texts, indent: json.dumps([{"messages": turns(one)} for one in texts], indent=indent), True),
    "conversations": (lambda texts, _: "\n".join(json.dumps(turns(one)) for one in texts), True),
    "ShareGPT": (lambda texts, indent: json.dumps([share_gpt(one) for one in texts], indent=indent), True),
    "cut": (lambda texts, indent: json.dumps([share_gpt(one) for one in texts], indent=indent)[:-4], False),
    "within an array": (lambda texts, _: "\n".join(json.dumps(one) + "," for one in texts), False),
    "table": (lambda texts, _: "id,prompt\n" + "\n".join(f'1,"{one}"' for one in texts), False),
    "column": (lambda texts, _: "prompt\n" + "\n".join(texts), False),
    "fenced": (lambda texts, _: "```text\n" + "\n".join(texts) + "\n```", False),
    "list": (lambda texts, _: "\n".join(f"- prompt: {one}" for one in texts), False),
    "program": (lambda texts, _: "prompts = [\n" + ",\n".join(map(repr, texts)) + "\n]", False),
    "mixed": (lambda texts, _: "Once\n" + "\n".join(json.dumps({"prompt": one}) for one in texts), False),
    "other object": (lambda texts, indent: json.dumps({"data": texts}, indent=indent), False),
    "ids": (lambda texts, _: json.dumps([list(range(len(one))) for one in texts]), False),
}


@pytest.mark.parametrize("kind", FILES)
def test_a_file_of_prompts_is_read_as_it_is_meant_or_refused(kind, tmp_path):
    chance, (write, is_read) = random.Random(kind), FILES[kind]
    for number in range(12):
        texts = [f"Say {' '.join(chance.choices(WORDS, k=5))}" for _ in range(chance.randrange(2, 6))]
        text = write(texts, chance.choice([None, 2])).replace("\n", chance.choice(["\n", "\r\n"]))
        data = text.encode(chance.choice(["utf-8", "utf-8-sig", "utf-16"]))
        (tmp_path / "prompts").write_bytes(chance.choice([data, gzip.compress(data)]))
        if not is_read:
            with refused("prompts"):
                read_prompts(text_of(tmp_path / "prompts"))
            continue
        found = read_prompts(text_of(tmp_path / "prompts"))
        assert [one.prompt or one.messages[-1]["content"] for one in found] == texts, number
        assert all(message["role"] in ("system", "user") for one in found for message in one.messages)


@pytest.mark.parametrize(
    "beginning", [b"PK\x03\x04", b"PAR1", b"\x28\xb5\x2f\xfd", b"BZh9", b"%PDF-1.7", b"\x1f\x8b\x08"]
)
def test_a_file_that_is_no_text_is_called_by_its_name(beginning, tmp_path):
    (tmp_path / "file").write_bytes(beginning + bytes(200))
    with refused("prompts", "unpack|damaged|cut off"):
        text_of(tmp_path / "file")
