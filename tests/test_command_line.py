"""A run in a terminal: colours say where a token came from, and model text cannot steer the terminal."""

import argparse
import io
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import types
from dataclasses import replace

import pytest
from handmade import a_round, a_tree, a_typical, rounds_of

import specviz
from specviz.__main__ import main
from specviz.commands.output import write_all
from specviz.decoding.lossless import LAB_RULES
from specviz.drafters import DRAFTERS
from specviz.records import rules
from specviz.records.assets import EMBEDDED
from specviz.records.errors import SpecvizError
from specviz.records.links import settings_of_run
from specviz.records.metrics import tally
from specviz.records.runs import Run, Seconds
from specviz.records.streams import take_anything
from specviz.rules import RULES, rule_named
from specviz.views import terminal
from specviz.views.run_messages import token_sources

ROOT = pathlib.Path(__file__).parent.parent

#: The page's classes of a token, and the terminal's colours for them.
COLOURS = {
    "accepted": terminal.ACCEPTED,
    "recovered": terminal.RECOVERED,
    "bonus": terminal.BONUS,
    "plain": terminal.PLAIN,
}


def painted_pieces(text):
    return re.findall(r"\x1b\[([\d;]+)m(.*?)\x1b\[0m", text, re.DOTALL)


#: Trees in which each ending occurs: a bonus after a leaf, a recovered token after refused siblings.
TREES = tuple(a_tree((-1, -1, 0, 0, 1), seed=seed) for seed in range(6))


@pytest.mark.parametrize(
    "one",
    [*map(a_round, ["aaa", "aard", "r", ""]), a_round("aaa", emit=2, stop_reason="length"), *TREES, a_typical()],
)
def test_each_token_has_the_colour_of_the_source_the_page_gives_it_and_without_colour_only_text_is_left(one):
    expected = [(COLOURS[source], piece) for source, piece in zip(token_sources(one), one.pieces)]
    assert painted_pieces(terminal.paint_round(one, True)) == expected
    assert terminal.paint_round(one, False) == "".join(one.pieces)


def test_the_four_sources_have_four_colours_for_terminals_and_four_signs(monkeypatch):
    legend = terminal.legend(False)
    assert len(set(COLOURS.values())) == 4 and all(sign in legend for sign in "✓↻★○") and "\x1b" not in legend
    screen, pipe = (types.SimpleNamespace(isatty=lambda known=known: known) for known in (True, False))
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert terminal.wants_colour(screen) and not terminal.wants_colour(pipe)
    monkeypatch.setenv("NO_COLOR", "1")
    assert not terminal.wants_colour(screen)


@pytest.mark.parametrize(
    "text, shown",
    [
        ("\x1b[31mred\x1b[0m", "␛[31mred␛[0m"),
        ("\x1b]0;title\x07", "␛]0;title␇"),
        ("a\0b\rc\bd", "a␀b␍c␈d"),
        ("\x9b2J\x7f", "\ufffd2J\ufffd"),
        ("\ud800", "\ufffd"),
        ("lines\n\tstay, é 😀 שלום too", "lines\n\tstay, é 😀 שלום too"),
        ("\u202eback\u2066wards\u2069", "\ufffdback\ufffdwards\ufffd"),
        ("hid\u00adden\ufeff\u200b\U000e0041", "hid\ufffdden\ufffd\ufffd\ufffd"),
        ("می\u200cخواهم 👩\u200d🚀", "می\u200cخواهم 👩\u200d🚀"),
    ],
)
def test_control_characters_of_model_text_become_visible(text, shown):
    assert terminal.harmless(text) == shown
    one = a_round("", texts=(text,))
    assert terminal.paint_round(one, False) == shown
    assert terminal.paint_round(one, True) == f"\x1b[{terminal.PLAIN}m{shown}\x1b[0m"


def test_the_summary_states_the_tallys_figures():
    summary = terminal.summary(tally(rounds_of("aaa", "ard")), "length", "token")
    assert "6 tokens in 2 target passes" in summary
    assert "3.00 tokens per pass" in summary and "80% of judged" in summary and "length" in summary
    assert "rule: token" in summary and "LOSSY" not in summary and "depth" not in summary
    plain = terminal.summary(tally(rounds_of("", "")), "length", "token")
    assert "judged" not in plain and "rule" not in plain
    slow = tally([replace(a_round("aaa"), seconds=Seconds(0.0, 20.0, 0.0, 20.0, 20.0))])
    assert "0.2 tokens/s" in terminal.summary(slow, "length", "token")
    assert terminal.summary(tally([]), "stopped", "token") == "0 tokens in 0 target passes · stopped: stopped"
    assert "2.5 draft tokens per depth" in terminal.summary(tally(TREES), "length", "tree")
    lossy = terminal.summary(tally([a_typical()]), "length", "typical")
    assert "LOSSY" in lossy and "0.370 away" in lossy


def test_run_prints_the_text_and_writes_its_trace(tmp_path):
    path = tmp_path / "trace.json"
    order = ["run", "Once upon a time\x1b[2J", "--max-new-tokens", "12", "--dtype", "float32", "--json", str(path)]
    environment = os.environ | {"PYTHONIOENCODING": "utf-8", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "specviz", *order], cwd=ROOT, env=environment, capture_output=True, encoding="utf-8"
    )
    assert done.returncode == 0, done.stderr
    run = Run.load(path)
    assert len(run.token_ids) == 12 and run.drafter == "draft_model"
    assert done.stdout == terminal.harmless(run.prompt.text + run.text)
    assert "\x1b" not in done.stdout + done.stderr, "a pipe gets no colours"
    assert terminal.summary(tally(run.rounds), run.stop_reason, run.rule) in done.stderr


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "cp437", "latin-1", "utf-8"])
def test_any_text_can_be_written_in_any_encoding(encoding):
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding)
    take_anything(stream)
    stream.write(f"α = 0.8 → {terminal.legend(False)} · 你好 \N{PILE OF POO}")
    stream.flush()
    shown = raw.getvalue().decode(encoding)
    assert "= 0.8 " in shown and "accepted draft" in shown
    assert ("alpha" in shown and "ok accepted" in shown) is (encoding in ("ascii", "cp1252", "latin-1"))


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_commands_write_to_terminals_that_know_few_characters(encoding, tmp_path):
    environment, file = os.environ | {"PYTHONIOENCODING": encoding}, tmp_path / "answer.json"
    counts = {"spec_num_correct_drafts": 63, "spec_num_proposed_drafts": 215, "spec_verify_ct": 43}
    file.write_text(json.dumps({"id": "a", "usage": {"completion_tokens": 54}, "meta_info": counts}))
    for arguments in (["metrics", str(file)], ["--help"], ["run", "--help"], ["metrics", "nö/such/file"]):
        done = subprocess.run(
            [sys.executable, "-m", "specviz", *arguments], cwd=ROOT, env=environment, capture_output=True
        )
        assert b"Traceback" not in done.stderr and done.stdout + done.stderr
        assert done.returncode == (2 if "nö/such/file" in arguments else 0)


def test_metrics_come_from_a_file_or_from_the_input_and_go_into_a_file_too(tmp_path):
    answers = [{"id": "a", "acceptance_histogram": [1, 3]}, {"id": "b", "acceptance_histogram": [-1]}]
    data, written = "\n".join(map(json.dumps, answers)).encode("utf-16"), tmp_path / "figures.json"
    (tmp_path / "answers.jsonl").write_bytes(data)
    command = [sys.executable, "-m", "specviz", "metrics", "--json", str(written)]
    for name, given in ((str(tmp_path / "answers.jsonl"), b""), ("-", data)):
        done = subprocess.run([*command, name], cwd=ROOT, input=given, capture_output=True)
        shown = done.stdout.decode()
        assert done.returncode == 0 and "1 requests, 4 target passes" in shown and "Request 2: acceptance_hist" in shown
        figures = json.loads(written.read_text(encoding="utf-8"))
        assert (figures["requests"], figures["passes"], figures["tokens_per_pass"]) == (1, 4, 1.75)
        assert figures["left_out"] == len(figures["reasons"]) == 1 and figures["reasons"][0] in shown
        written.unlink()


def running(*arguments: str, **streams: int) -> subprocess.Popen[bytes]:
    """A long run of the embedded pair, in a process of its own."""
    order = ["run", "Once", "--max-new-tokens", "400", "--passes", "plain", *arguments]
    return subprocess.Popen([sys.executable, "-m", "specviz", *order], cwd=ROOT, stderr=subprocess.PIPE, **streams)


def stopped(process: subprocess.Popen[bytes], stop: str) -> int:
    """The exit status once nobody reads its output any more, or after a signal; it ends without a traceback."""
    if stop == "close":
        process.stdout.close()
    else:
        process.send_signal({"interrupt": signal.SIGINT, "terminate": signal.SIGTERM}[stop])
    told = process.stderr.read().decode()
    assert "Traceback" not in told and "Exception ignored" not in told
    return process.wait(60)


@pytest.mark.parametrize("stop", ["close", "interrupt"])
def test_who_stops_reading_or_presses_ctrl_c_keeps_the_trace(tmp_path, stop):
    path = tmp_path / "trace.json"
    process = running("--json", str(path), stdout=subprocess.PIPE)
    assert process.stdout.read(5) == b"Once "  # it writes
    assert stopped(process, stop) == 0
    assert 0 < len(Run.load(path).token_ids) <= 400


@pytest.mark.parametrize("stop, status", [("close", 141), ("interrupt", 130), ("terminate", 130)])
def test_who_stops_a_check_keeps_what_it_found(tmp_path, stop, status):
    path = tmp_path / "check.json"
    order = [sys.executable, "-m", "specviz", "check", "--json", str(path)]
    process = subprocess.Popen(order, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout.readline().startswith("✓ greedy text".encode())
    assert stopped(process, stop) == status
    report = json.loads(path.read_text(encoding="utf-8"))
    assert report["interrupted"] and report["findings"]


@pytest.mark.parametrize("stop, status", [("close", 141), ("interrupt", 130)])
def test_who_stops_a_training_is_told_how_to_go_on(tmp_path, stop, status):
    text = tmp_path / "text.txt"
    text.write_text("Once upon a time there was a king who had three daughters. " * 2000)
    order = ["medusa", "--text", text, "--out", tmp_path / "part", "--continuations", "0", "--device", "cpu"]
    order = [sys.executable, "-m", "specviz.training", *map(str, order)]
    process = subprocess.Popen(order, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout.readline().startswith(b"medusa: ")
    if stop == "close":
        process.stdout.close()
    else:
        process.send_signal(signal.SIGINT)
    told = process.stderr.read().decode()
    assert "Traceback" not in told and "The same command goes on" in told
    assert process.wait(60) == status


@pytest.mark.parametrize("order", ["specviz metrics {}", "tools.bench_table {}"])
def test_a_command_that_nobody_reads_ends_without_a_traceback(tmp_path, order):
    report = pathlib.Path(ROOT, "docs", "figures", "bench-zen5.json")
    if "metrics" in order:
        report = tmp_path / "metrics.json"
        report.write_text(json.dumps({"meta_info": {"spec_verify_ct": 43, "completion_tokens": 54}}))
    order = [sys.executable, "-m", *order.format(report).split()]
    process = subprocess.Popen(order, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.close()
    assert process.stderr.read() == b"" and process.wait(60) == 141


def test_a_command_whose_output_is_closed_does_its_work(tmp_path):
    path = tmp_path / "trace.json"
    order = ["run", "Once", "--max-new-tokens", "4", "--passes", "plain", "--json", str(path)]
    closed = subprocess.run(
        ["sh", "-c", '"$@" >&-', "sh", sys.executable, "-m", "specviz", *order], cwd=ROOT, capture_output=True
    )
    assert closed.returncode == 0 and b"Traceback" not in closed.stderr
    assert len(Run.load(path).token_ids) == 4


def test_an_input_that_is_closed_is_empty():
    closed = subprocess.run(
        ["sh", "-c", '"$@" <&-', "sh", sys.executable, "-m", "specviz", "metrics", "-"], cwd=ROOT, capture_output=True
    )
    assert (closed.returncode, closed.stderr.decode()[:36]) == (2, "specviz: metrics: The file is empty:")


def test_before_anything_was_measured_ctrl_c_ends_it_without_a_word():
    order = [sys.executable, "-X", "importtime", "-m", "specviz", "check"]
    for wanted in (b"pydantic", b"torch"):  # while modules are imported, then within the command
        process = subprocess.Popen(order, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        while wanted not in (line := process.stderr.readline()):
            assert line, "it has ended"
        assert stopped(process, "interrupt") in (-signal.SIGINT, 130)


@pytest.mark.skipif(not pathlib.Path("/dev/full").exists(), reason="there is no full disk to write to")
def test_a_disk_that_is_full_at_the_end_is_a_sentence_and_the_text_was_shown(capfd):
    assert main(["run", "Once", "--max-new-tokens", "4", "--passes", "plain", "--json", "/dev/full"]) == 2
    out, err = capfd.readouterr()
    assert out.startswith("Once") and "--json: /dev/full cannot be written (No space left on device)" in err


def test_a_file_that_cannot_be_written_does_not_keep_the_others_from_it(tmp_path):
    full, options = SpecvizError("{path} is full.", path="a"), argparse.Namespace(json=tmp_path / "a", csv=None)
    options.html, options.junit = tmp_path / "b", tmp_path / "no" / "c"

    def failing(path):
        raise full

    with pytest.raises(SpecvizError) as caught:
        write_all(options, {"json": failing, "csv": "text", "html": "kept", "junit": "text"})
    assert caught.value is full, "the first"
    assert [path.name for path in tmp_path.iterdir()] == ["b"] and options.html.read_text() == "kept"


def test_looking_whether_a_file_can_be_written_leaves_none_and_loses_none(tmp_path, monkeypatch):
    def refusing(*asked):
        raise SpecvizError("none", "target")

    monkeypatch.setattr("specviz.commands.pairs.load", refusing)
    new, old = tmp_path / "new.json", tmp_path / "old.json"
    old.write_text("kept")
    for path in (new, old):
        assert main(["run", "Once", "--json", str(path)]) == 2
    assert not new.exists() and old.read_text() == "kept"


def test_run_drafts_and_judges_as_it_is_told(tmp_path, capfd):
    path, page = tmp_path / "trace.json", tmp_path / "run.html"
    order = "run Once --max-new-tokens 8 --gamma 3 --dtype float32 --drafter early_exit --exit-layer 3 --branches 2"
    assert (
        main([*order.split(), "--confidence", "0.1", "--rule", "typical", "--json", str(path), "--html", str(page)])
        == 0
    )
    run = Run.load(path)
    assert (run.drafter, run.rule) == ("early_exit", "typical")
    assert run.settings == {"branches": 2, "confidence": 0.1, "exit_layer": 3}
    assert page.read_text(encoding="utf-8") == specviz.run_page(run)
    out, err = capfd.readouterr()
    assert out == run.prompt.text + run.text
    assert "LOSSY" in err and "draft tokens per depth" in err


def test_a_run_follows_the_grammar_in_a_file(tmp_path, capfd):
    grammar, path = tmp_path / "grammar", tmp_path / "trace.json"
    grammar.write_text("/ (red|blue)/\n", encoding="utf-8")
    assert main(["run", "My coat is", "--grammar", str(grammar), "--passes", "plain", "--json", str(path)]) == 0
    run = Run.load(path)
    assert run.text in (" red", " blue") and run.grammar == "/ (red|blue)/\n"
    assert settings_of_run(run)["grammar"] == run.grammar


def test_a_target_alone_is_enough_and_parts_are_named_like_draft_models(tmp_path, capfd):
    order = f"run Once --target {EMBEDDED / 'target'} --max-new-tokens 4 --passes plain --json"
    for path, draft, drafter in (
        (tmp_path / "1", [], "prompt_lookup"),
        (tmp_path / "2", ["--draft", str(EMBEDDED / "eagle")], "eagle"),
    ):
        assert main([*order.split(), str(path), *draft]) == 0
        assert Run.load(path).drafter == drafter


def test_help_names_every_drafter_and_rule_without_loading_torch():
    assert tuple(LAB_RULES) == rules.LAB_RULES and all(rule_named(name).name == name for name in RULES)
    code = (
        "import sys; from specviz.__main__ import main\n"
        "try: main(['run', '--help'])\n"
        "except SystemExit: print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "False", done.stderr
    assert all(name in done.stdout for name in (*DRAFTERS, "typical"))


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        ("run text --temperature -1", "specviz: --temperature: Temperature must be 0 (greedy decoding) or"),
        ("run text --target no/such/folder/anywhere", "no/such/folder/anywhere"),
        ("run text --branches 9", "--branches: branches must be a whole number from 1 to 8"),
        (f"run text --target {EMBEDDED / 'target'} --draft no/such/x", "--draft: There is no folder or file no/such/x"),
        ("run text --target ~no-such-user/x", "--target: There is no folder or file ~no-such-user/x"),
        ("run text --draft no/such/folder", "--target: Name a target too"),
        ("run text --rule block --branches 2 --dtype float32", "The rule block judges chains only"),
        ("run text --exit-layer 99 --drafter early_exit --dtype float32", "layers"),
        ("run text --max-new-tokens 0", "--max-new-tokens: Ask for at least one new token"),
        ("run text --temperature 1e400", "a finite number from 0.01 up, not inf"),
        ("run text --json no/such/folder/run.json", "--json: no/such/folder/run.json cannot be written (No such file"),
        ("run text --grammar no/such/file", "--grammar: The file cannot be read: No such file"),
        (f"run text --grammar {os.devnull}", "--grammar: The file is empty"),
        ("bench --json .", "--json: . cannot be written (Is a directory)"),
        ("bench --temperature -1", "Temperature must be 0 (greedy decoding) or"),
        ("bench --vary speed=1,2", "--vary: There is no setting 'speed' to vary"),
        ("bench --vary temperature=0,1 --temperature 0.5", "--vary: --temperature is given by itself and under --vary"),
        (
            "bench --vary max_new_tokens=8 --max-new-tokens 4",
            "--vary: --max-new-tokens is given by itself and under --vary",
        ),
        (f"run text --target {'a' * 300}", "cannot be opened: File name too long"),
        (f"run text --target {EMBEDDED / 'target'} --draft /{'a' * 300}", "--draft: '/aaa"),
        (f"run text --json {'a' * 300}", "cannot be written (File name too long"),
        ("server http://a..b", "server: 'http://a..b' is not an address"),
        ("server localhost:9 --max-new-tokens -1", "--max-new-tokens: Ask for at least one new token"),
        ("server localhost:9 --target no/such/folder", "--target: There is no folder or file no/such/folder"),
        ("server localhost:99999", "server: 'localhost:99999' is not an address: a port is at most 65535"),
        ("server localhost:9 --samples 0", "--samples: Enter whole numbers from 1 to"),
        ("server localhost:9 --temperature 0", "--temperature: Samples are drawn at a temperature above 0"),
        ("server localhost:9 --prompts no/such/file", "--prompts: The file of prompts cannot be read"),
        (f"grade {'a' * 300}", "The file cannot be read: File name too long"),
        ("gain README.md", "README.md is not a table of answers"),
        (f"metrics {os.devnull}", "metrics: The file is empty"),
        (f"gain {'a' * 300}", "The file cannot be read: File name too long"),
        ("bench --only oracle --dtype float32", "There is no drafter 'oracle'"),
    ],
)
def test_a_mistake_is_one_sentence_and_status_2(arguments, sentence, capfd):
    assert main(arguments.split()) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith("specviz: ") and sentence in err
    assert len(err.strip().splitlines()) == 1, "no traceback"
