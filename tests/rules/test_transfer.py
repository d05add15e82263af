"""What a round brings to the device does not wait for what the device is doing."""

import ast
import pathlib

import pytest
import torch

import specviz
from specviz.rules.transfer import to_device

PACKAGE = pathlib.Path(specviz.__file__).parent

#: What runs within a round; the reference is there to be read.
ROUND = [
    *PACKAGE.glob("rules/*.py"),
    *PACKAGE.glob("drafters/*.py"),
    *sorted(set(PACKAGE.glob("decoding/*.py")) - {PACKAGE / "decoding" / "reference.py"}),
    PACKAGE / "passes" / "cached_model.py",
    PACKAGE / "passes" / "readers.py",
]


def test_on_a_cpu_it_is_a_plain_tensor():
    cpu = torch.device("cpu")
    for values in ([], [3, 1], (7,), range(2)):
        made = to_device(values, cpu)
        assert made.dtype == torch.long and made.tolist() == list(values)
    mask = torch.ones(2, 2, dtype=torch.bool)
    assert to_device(mask, cpu) is mask


def test_to_a_gpu_it_goes_from_page_locked_memory_without_waiting(monkeypatch):
    seen = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda host: seen.append("pinned") or host)
    monkeypatch.setattr(torch.Tensor, "to", lambda host, *given, **named: seen.append((given, named)) or host)
    to_device([1, 2], torch.device("cuda:1"))
    assert seen == ["pinned", ((torch.device("cuda:1"),), {"non_blocking": True})]


@pytest.mark.parametrize("path", ROUND, ids=lambda path: path.name)
def test_a_round_makes_no_tensor_of_host_values_on_the_device_in_any_other_way(path):
    for function in [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)]:
        if function.name == "__init__":  # before a run's first round
            continue
        for call in [node for node in ast.walk(function) if isinstance(node, ast.Call)]:
            waits = ast.unparse(call.func) == "torch.tensor" and any(each.arg == "device" for each in call.keywords)
            assert not waits, f"{path.name}:{call.lineno}"
