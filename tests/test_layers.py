"""Imports flow one way, and what is plain stays plain."""

import ast
import pathlib
import re
import subprocess
import sys

import pytest

PACKAGE = pathlib.Path(__file__).parent.parent / "specviz"

#: Each folder imports only from itself and from those before it.
FOLDERS = ["records", "theory", "testing", "grading", "foreign", "rules", "passes", "parts", "models", "servers"]
FOLDERS += ["drafters", "training", "decoding", "bench", "views", "ui", "commands"]
#: Importing these never loads torch; only `ui` loads gradio.
PLAIN = ["records", "theory", "testing", "grading", "foreign", "servers", "views", "commands"]

FILES = sorted(PACKAGE.rglob("*.py"))


def imported(path: pathlib.Path) -> set[str]:
    """The modules of this package that a file imports, by their whole dotted names."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "specviz":
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names if alias.name.split(".")[0] == "specviz"}
    return {name for name in names if PACKAGE.parent.joinpath(*name.split(".")).with_suffix(".py").is_file()} | {
        f"{name}.__init__" for name in names if PACKAGE.parent.joinpath(*name.split("."), "__init__.py").is_file()
    }


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_folder_imports_only_from_those_below_it(folder):
    """Nor from the front door, which leads to all of them."""
    below = {folder, *FOLDERS[: FOLDERS.index(folder)]}
    for path in (PACKAGE / folder).rglob("*.py"):
        above = {name for name in imported(path) if name.split(".")[1] not in below}
        assert not above, f"{path.relative_to(PACKAGE)} imports {above}"


def test_at_the_top_there_are_folders_and_the_two_doors():
    assert {path.name for path in PACKAGE.glob("*.py")} == {"__init__.py", "__main__.py"}
    assert {path.parent.name for path in PACKAGE.glob("*/__init__.py")} == set(FOLDERS)


def test_the_map_of_a_folder_names_all_that_is_in_it_and_nothing_else():
    """But for the commands, which are called as their files are."""
    lost, gone = set(), set()
    for path in PACKAGE.glob("*/**/__init__.py"):
        folder, told = path.parent, ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        inside = {file.stem for file in folder.glob("*.py")} | {
            file.parent.name for file in folder.glob("*/__init__.py")
        }
        inside -= {"__init__", "__main__"}
        if folder.name == "commands":
            inside = {
                name for name in inside if "\nABOUT = " not in (folder / f"{name}.py").read_text(encoding="utf-8")
            }
        lost |= {f"{folder.name}/{name}" for name in inside - set(re.findall(r"\w+", told))}
        gone |= {f"{folder.name}/{name}" for name in set(re.findall(r"^(\w+)(?:/?  +|: )", told, re.M)) - inside}
    assert not lost and not gone


def test_no_files_import_each_other_in_a_circle():
    name_of = {path: ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts) for path in FILES}
    below = {name_of[path]: imported(path) - {name_of[path]} for path in FILES if path.parent != PACKAGE}
    while free := [name for name, others in below.items() if not others & below.keys()]:
        for name in free:
            del below[name]
    assert not below, f"in a circle, or above one: {sorted(below)}"


def modules_of(folders):
    return [
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
        for path in FILES
        if path.relative_to(PACKAGE).parts[0] in folders and path.name != "__main__.py"
    ]


def printed(code):
    """The value that a fresh interpreter prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=PACKAGE.parent)
    return ast.literal_eval(done.stdout)


def test_plain_modules_never_load_torch_and_the_page_stands_before_it_is_there():
    plain = [*modules_of(PLAIN), "specviz.models.catalog", "specviz.models.token_texts", "specviz.bench.contestants"]
    code = f"import importlib, sys\nfor name in {plain}: importlib.import_module(name)\n"
    code += "found = [name for name in ('torch', 'gradio') if name in sys.modules]\nimport specviz.ui.page\n"
    code += "print(found + [name for name in ('torch', 'transformers') if name in sys.modules])"
    assert printed(code) == []


def test_engine_and_benchmark_run_without_gradio_and_loading_a_pair_imports_all_of_transformers_for_the_page():
    """Two threads that import parts of transformers at once may each find the other's half done; `PairStore` has one
    thread import `specviz.models.loading` before any other gets to a pair."""
    asked_by_page = {name for path in (PACKAGE / "ui").rglob("*.py") for name in imported(path)}
    asked_by_page = sorted(name.removesuffix(".__init__") for name in asked_by_page if ".ui." not in name)
    code = "import importlib, sys, specviz.models.loading\nbefore = set(sys.modules)\n"
    code += f"for name in {asked_by_page}: importlib.import_module(name)\n"
    code += "later = [name for name in set(sys.modules) - before if name.startswith('transformers')]\n"
    code += f"for name in {modules_of(set(FOLDERS) - {'ui'})}: importlib.import_module(name)\n"
    assert printed(code + "print(later + [name for name in sys.modules if name == 'gradio'])") == []
