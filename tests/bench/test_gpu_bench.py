"""The tool that measures a GPU, on a tiny pair without one."""

import json

import torch
from transformers import AutoModelForCausalLM

from tools import gpu_bench


def test_a_pair_of_a_shape_is_made_and_measured_by_the_benchmark_and_what_the_budget_has_no_time_for_is_left_out(
    tmp_path, capsys, monkeypatch
):
    quick = "bench --quick --only draft_model --max-new-tokens 12 --temperature 0"
    monkeypatch.setitem(gpu_bench.STEPS, "made", (True, quick))
    gpu_bench.main([str(tmp_path), "--shape", "tiny", "--steps", "made"])
    report = json.loads((tmp_path / "made.json").read_text(encoding="utf-8"))
    assert not report["failed"] and len(report["equality"]) > 4, "greedy texts are plain decoding's"
    assert {row["title"] for row in report["rows"]} >= {"plain", "draft_model γ=4", "transformers draft_model γ=4"}
    told = capsys.readouterr().out
    assert "made: status 0" in told and "| `draft_model` | γ=" in told
    gpu_bench.main([str(tmp_path), "--steps", "embedded_check", "--budget", "0"])
    assert capsys.readouterr().out == "embedded_check: left out, the budget is spent\n"


def test_the_large_shape_has_the_parameters_of_its_model_card():
    shape = gpu_bench.SHAPES["8b"]
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(shape.config(shape.sizes["num_hidden_layers"]))
    assert sum(parameter.numel() for parameter in model.parameters()) == 8_030_261_248
