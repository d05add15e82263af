"""The notebook in examples/ runs on the embedded pair, and shows what it says it shows."""

import ast
import json
import pathlib

import pandas as pd

from specviz.records.runs import Run

NOTEBOOK = pathlib.Path(__file__).parent.parent / "examples" / "speculate.ipynb"


def executed(source: str, names: dict) -> object:
    """The value of a cell's last line, if that is an expression: what a notebook shows."""
    lines = ast.parse(source).body
    last = lines.pop().value if isinstance(lines[-1], ast.Expr) else ast.parse("None", mode="eval").body
    exec(compile(ast.Module(lines, []), "cell", "exec"), names)
    return eval(compile(ast.Expression(last), "cell", "eval"), names)


def test_every_cell_runs_and_the_notebook_ships_without_outputs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))  # what the notebook adds to the path goes away with it
    cells = [cell for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    assert not any(cell["outputs"] for cell in cells)
    names: dict = {}
    shown = [executed("".join(cell["source"]), names) for cell in cells]
    assert "\x1b[" in capsys.readouterr().out, "the rounds are painted as they come"
    run = next(one for one in shown if isinstance(one, Run))
    assert Run.load("run.json") == run
    assert pathlib.Path("run.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    compared, counted = (one for one in shown if isinstance(one, pd.DataFrame))
    assert list(compared.drafter) == ["plain", "draft_model", "prompt_lookup", "eagle"]
    assert compared.speedup[0] == 1
    assert counted.to_numpy().sum() == sum(one.judged for one in run.rounds)
