"""Imports flow one way, and what is plain stays plain."""

import ast
import pathlib
import subprocess
import sys

import pytest

PACKAGE = pathlib.Path(__file__).parent.parent / "specviz"

#: Top never imports what stands below it; modules on one line do not import each other.
ORDER = [
    ["words"],
    ["errors"],
    ["records"],
    ["metrics", "theory", "roofline", "text", "catalog", "presets", "rules", "processes"],
    ["adaptive", "compare", "contest", "diagnosis", "links"],
    ["rows"],
    ["sections"],
    ["figures", "gallery"],
    ["sampling", "clock", "statistics", "parallel"],
    ["verify"],
    ["static"],
    ["cache", "exits", "vocabularies"],
    ["placement", "heads"],
    ["static_heads", "graphs"],
    ["refusals"],
    ["sources"],
    ["models"],
    ["drafters", "machine", "passes", "compiler", "sizes"],
    ["bare", "preparation"],
    ["recording", "oracle"],
    ["engine"],
    ["traces", "lossless", "untraced"],
    ["timing"],
    ["equality", "growth"],
    ["views"],
    ["bench", "terminal", "training"],
    ["size_bench", "ui"],
    ["__main__"],
]
LEVEL = {name: level for level, names in enumerate(ORDER) for name in names}


def modules():
    return sorted(PACKAGE.rglob("*.py"))


def part_of(path):
    """The name in ORDER that a file belongs to: its module, or the folder it lies in."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_parts(path):
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names = [node.module] if node.module != "specviz" else [f"specviz.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            if name.startswith("specviz."):
                yield name.split(".")[1]


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_flow_one_way(path):
    part = part_of(path)
    if part == "__init__":
        return
    for other in imported_parts(path):
        if other in LEVEL and other != part:
            assert LEVEL[other] < LEVEL[part], f"{part} imports {other}"


def test_every_module_has_its_place_in_the_order():
    assert {part_of(path) for path in modules()} - {"__init__"} <= set(LEVEL)


def loaded_by(statement, *packages):
    """Which of `packages` are loaded after `statement` in a fresh interpreter, specviz/__init__ left out."""
    code = (
        "import sys, types\n"
        f"package = types.ModuleType('specviz'); package.__path__ = [{str(PACKAGE)!r}]\n"
        "sys.modules['specviz'] = package\n"
        f"{statement}\n"
        f"print([name for name in {packages!r} if name in sys.modules])"
    )
    return ast.literal_eval(
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    )


PLAIN = ["records", "metrics", "theory", "rules", "contest", "figures", "roofline", "diagnosis", "links", "gallery"]
PLAIN += [
    "adaptive",
    "compare",
    "rows",
    "sections",
    "views.bench_figure",
    "views.lossless_messages",
    "views.messages",
    "views.compare_messages",
    "views.charts",
    "views.why_messages",
]


WITHOUT_GRADIO = ["engine", "bench", "size_bench", "growth", "terminal", "traces", "lossless"]


def importing(modules):
    return "; ".join(f"import specviz.{module}" for module in modules)


def test_plain_modules_never_load_torch():
    assert loaded_by(importing(PLAIN), "torch", "gradio") == []


def test_engine_and_benchmark_run_without_gradio():
    assert loaded_by(importing(WITHOUT_GRADIO), "gradio") == []
