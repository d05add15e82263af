"""The tool that measures a GPU, on a tiny pair without one: every row is there, and what fails ends alone."""

import contextlib
import io
import json
import shutil

import pytest

from specviz.bench.contestants import Contestant
from specviz.records.assets import EMBEDDED
from tools import gpu_bench
from tools.gpu_figures import Timed
from tools.gpu_report import Report, common_length, table


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The embedded pair where its weights are absent: nothing but a tokenizer."""
    bare = tmp_path_factory.mktemp("models")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(EMBEDDED / "target" / name, bare)
    return bare


def called(*arguments):
    """What the command prints."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        gpu_bench.main([*map(str, arguments)])
    return printed.getvalue()


@pytest.fixture(scope="module")
def measured(folder):
    """The file of a whole run, and what was printed."""
    path = folder / "results" / "gpu.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpu_bench, "WARM", 1)
        patch.setattr(gpu_bench, "PASSES_BUDGET", 0.1)
        patch.setitem(gpu_bench.TOKENS, "tiny", 20)
        printed = called("--json", path, "--shape", "tiny", "--budget", 60, "--folder", folder)
    return path, printed


def test_the_file_holds_every_row_and_what_was_left_out(measured):
    values = json.loads(measured[0].read_text(encoding="utf-8"))
    assert not values["failed"]
    assert {one["what"]: one["reason"] for one in values["skipped"]}.keys() == {"embedded", "check"}
    assert values["machine"]["date"] and values["machine"]["torch"] and "pair" in values["preparation"]
    assert values["pairs"]["pair"]["target_parameters"] > values["pairs"]["pair"]["draft_parameters"]
    assert values["copy_bandwidth"] > 0
    assert [one["role"] for one in values["passes"]] == ["target", "draft"]
    for one in values["passes"]:
        assert [*one["ms"]] == [str(width) for width in gpu_bench.WIDTHS] and one["share"] > 0
    rows = {(row["part"], row["title"], row["temperature"]): row for row in values["rows"]}
    ways = [("rounds", way.title, temperature) for way, temperature in gpu_bench.ways(2)]
    peers = [("transformers plain", 0.0), ("transformers draft_model γ=4", 0.0), ("transformers draft_model γ=4", 1.0)]
    assert [*rows] == [*ways, *[("peers", *peer) for peer in peers]]
    for row in rows.values():
        assert row["tokens"] == 20 and row["tokens_per_second"] == pytest.approx(20 / row["seconds"], rel=0.3)
    for key in ways:
        row = rows[key]
        assert row["runs"] == gpu_bench.REPEATS and (row["over_plain"] is None) == (row["mode"] == "plain")
        assert 0 < row["outside_ms"] < row["round_ms"] < row["whole_ms"]


def test_greedy_texts_are_plain_decoding_s(measured):
    values = json.loads(measured[0].read_text(encoding="utf-8"))
    drafted = [row for row in values["rows"] if row["temperature"] == 0 and row["mode"] != "plain"]
    assert len(drafted) == 7
    for row in drafted:
        assert row["as_plain"] == row["tokens"], row["what"]


def test_the_table_is_printed_from_the_file(measured):
    path, printed = measured
    assert called("--table", path) == printed
    assert "| draft_model γ=4, T = 1 |" in printed and "| ms a pass over | 1 | 2 | 5 | 9 | 17 |" in printed
    assert "- Left out, since the embedded pair's weights are not here: embedded; check." in printed


def test_nothing_begins_after_the_budget(folder):
    path = folder / "none.json"
    printed = called("--json", path, "--shape", "tiny", "--budget", 0, "--folder", folder, "--profile")
    values = json.loads(path.read_text(encoding="utf-8"))
    assert [one["what"] for one in values["skipped"]] == [*gpu_bench.PARTS] and not values["rows"]
    assert "Nothing was measured" in printed


def test_a_part_or_a_row_that_fails_is_told_and_the_rest_goes_on(folder, monkeypatch):
    def fail(*_):
        raise RuntimeError("no kernel image is available")

    monkeypatch.setattr(gpu_bench, "first_layers_pair", fail)
    path = folder / "failed.json"
    printed = called("--json", path, "--shape", "tiny", "--folder", folder, "--parts", "pair,passes,check")
    failed = json.loads(path.read_text(encoding="utf-8"))["failed"]
    assert [one["what"] for one in failed] == ["pair", "passes"] and "no kernel image" in printed

    report = Report(path, budget=60)
    report.row("rounds", Contestant("plain"), 0.0, lambda: [timed(10.0, [1, 2, 3])])
    report.row("rounds", Contestant("eagle", 4), 0.0, fail)
    report.row("rounds", Contestant("mtp", 4), 0.0, lambda: [timed(30.0, [1, 2, 4]), timed(20.0, [1, 2, 4])])
    values = json.loads(path.read_text(encoding="utf-8"))
    assert [one["what"] for one in values["failed"]] == ["rounds, eagle γ=4, greedy"]
    plain, other = values["rows"]
    assert (other["tokens_per_second"], other["over_plain"], other["as_plain"]) == (25.0, 2.5, 2)
    assert plain["over_plain"] is None and "| mtp γ=4, greedy | 25.0 | 2.50 | 2 |" in table(values)


def timed(speed, token_ids):
    return Timed({"tokens": len(token_ids), "tokens_per_second": speed}, token_ids)


def test_texts_are_compared_from_their_start():
    assert common_length([1, 2, 3], [1, 2, 4]) == 2 and common_length([1], [1, 2]) == 1 and not common_length([], [1])
