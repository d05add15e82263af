"""`python -m specviz server`: what it prints and writes is what the server said."""

import json
from types import SimpleNamespace

import pytest
from replayed import recorded
from small_server import Reply, SmallServer, serving

from specviz.__main__ import main
from specviz.commands import output, server
from specviz.records.errors import SpecvizError
from specviz.records.runs import Run


@pytest.fixture
def asked(replay, tmp_path, capsys):
    """Runs the command on a recording: its exit status, what it printed, its file."""

    def ask(recording: str, *options: str):
        file = tmp_path / "server.json"
        status = main(["server", replay(recording).url, "--max-new-tokens", "32", "--json", str(file), *options])
        return status, capsys.readouterr(), json.loads(file.read_text())

    return ask


def test_rounds_of_a_real_llama_server_are_counted_as_it_counts_them(asked):
    status, printed, file = asked("llama_cpp_b10434_eagle", "--only", "rounds")
    assert (status, file["schema"], file["engine"], file["drafter"]) == (
        0,
        "specviz.server/1",
        "llama.cpp",
        "draft-eagle3",
    )
    rounds = Run.from_dict(file["rounds"]).rounds
    drafted, accepted = sum(len(r.drafted) for r in rounds), sum(r.accepted for r in rounds)
    passes = sum(1 for round_ in rounds if round_.drafted)
    assert f"{passes} passes verified a draft: {drafted} drafted, {accepted} accepted" in printed.out
    assert file["tokens_per_pass"] == pytest.approx(1 + accepted / passes)
    assert file["accepted_per_position"][0] == pytest.approx(sum(r.accepted > 0 for r in rounds) / passes)
    assert "top_k 40" in printed.out, "defaults that change the law are named"
    assert file["speed"] is None and file["lossless"] is None


def test_a_page_that_cannot_be_written_keeps_nothing_else_from_it(asked, tmp_path, monkeypatch):
    def full(options, option, content):
        if option == "html":
            raise SpecvizError("The disk is full.", "html")
        write(options, option, content)

    write = output.write
    monkeypatch.setattr(output, "write", full)
    status, printed, file = asked("llama_cpp_b10434_eagle", "--only", "rounds", "--html", str(tmp_path / "page"))
    assert status == 2 and "--html: The disk is full." in printed.err
    assert file["rounds"] is not None and "passes verified a draft" in printed.out
    monkeypatch.setattr(output, "write", write)
    assert asked("llama_cpp_b10434_eagle", "--only", "rounds", "--html", str(tmp_path / "page"))[0] == 0
    assert "<!doctype html>" in (tmp_path / "page").read_text(encoding="utf-8")


def test_what_a_server_answers_moves_no_cursor(capsys):
    hostile = "\x1b[2Jboom\x07"
    with serving(SmallServer({"/v1/models": Reply([hostile], 500)})) as small:
        assert main(["server", small.url, "--only", "rounds"]) == 2
    with output.keeping(lambda interrupted: f"a fault: {hostile}"):
        output.progress(f"✗ a server: {hostile}")
    printed = capsys.readouterr()
    assert printed.err.count("[2Jboom") == 2 and printed.out.count("[2Jboom") == 1
    assert not set("\x1b\x07") & set(printed.out + printed.err)


def test_a_key_that_is_refused_is_told_by_the_variable_that_holds_it(monkeypatch, capsys):
    with serving(SmallServer({"/v1/models": Reply([], 401)})) as small:
        for key, said in (("", "wants a key."), ("wrong", "refuses this key.")):
            monkeypatch.setenv("SPECVIZ_SERVER_KEY", key)
            assert main(["server", small.url, "--only", "rounds"]) == 2
            err = capsys.readouterr().err
            assert err.startswith("specviz: SPECVIZ_SERVER_KEY: ") and said in err


def test_what_is_inferred_says_so(asked):
    _, printed, file = asked("vllm_0_32_eagle", "--only", "rounds")
    assert "inferred from which tokens arrived together" in printed.out
    assert file["num_draft_tokens"] == 4 and file["accepted_per_position"] is not None


def test_where_nobody_knows_how_many_were_drafted_nothing_is_claimed(replay, tmp_path, capsys):
    """vLLM without its /metrics: a pass that adds one token may have rejected a draft, or had none."""
    exchanges = [exchange for exchange in recorded("vllm_0_32_eagle") if exchange.path != "/metrics"]
    file = tmp_path / "server.json"
    assert (
        main(["server", replay(exchanges).url, "--only", "rounds", "--max-new-tokens", "32", "--json", str(file)]) == 0
    )
    values = json.loads(file.read_text())
    rounds = Run.from_dict(values["rounds"]).rounds
    assert values["num_draft_tokens"] is None
    assert values["tokens_per_pass"] == pytest.approx(1 + sum(r.accepted for r in rounds) / len(rounds))
    assert f"{len(rounds)} passes: not known how many drafted" in capsys.readouterr().out


@pytest.mark.parametrize("recording", ["llama_cpp_b10434_plain", "vllm_0_32_plain"])
def test_of_a_server_that_drafts_nothing_no_drafts_are_diagnosed(asked, recording):
    status, printed, _ = asked(recording, "--only", "rounds")
    assert status == 0 and "none of them drafted" in printed.out and "a diagnosis needs" not in printed.out


def test_a_refusal_is_a_sentence_and_a_status_of_its_own(capsys):
    assert main(["server", "http://127.0.0.1:9"]) == 2
    assert "Nothing answers at http://127.0.0.1:9" in capsys.readouterr().err
    assert main(["server", "http://127.0.0.1:9", "--plain", "no address"]) == 2
    assert capsys.readouterr().err.startswith("specviz: --plain: ")
    models = {"/v1/models": Reply.json({"data": [{"id": "a"}, {"id": "b"}]})}
    with serving(SmallServer(models)) as small:
        assert main(["server", small.url, "--model", "nope"]) == 2
    assert capsys.readouterr().err.startswith("specviz: --model: ")


def test_a_server_that_is_gone_in_the_end_is_no_error(capsys):
    def gone():
        raise SpecvizError("Nothing answers.", "server")

    assert server._counted(SimpleNamespace(engine=SimpleNamespace(scrape=gone)), "") is None
    assert "The server's own counters are not known: Nothing answers." in capsys.readouterr().err


def test_no_option_takes_a_key(capsys):
    """Others on the machine could read it."""
    with pytest.raises(SystemExit):
        main(["server", "--help"])
    printed = capsys.readouterr().out
    assert "SPECVIZ_SERVER_KEY" in printed and "--key" not in printed
