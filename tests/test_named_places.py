"""What documents, docstrings and comments say lies somewhere does lie there."""

import ast
import io
import pathlib
import re
import tokenize

ROOT = pathlib.Path(__file__).parent.parent
TREES = ("specviz", "tests", "tools", "docs", "examples", "assets/web", "assets/models")
FILES = [path for tree in TREES for path in (ROOT / tree).rglob("*") if path.is_file()] + [*ROOT.glob("*.*")]
PLACES = {f"/{path.relative_to(ROOT).as_posix()}" for path in FILES}

#: A file of code or a document, in backticks or parentheses, not of a link: `engine.py`, `decoding/engine.py`.
PATH = re.compile(r"(?<!\])[`(]((?:[\w.-]+/)*[\w-]+\.(?:py|js|css|cpp|h|c|md))[`)]")
MODULE = re.compile(r"`(specviz(?:\.\w+)+)`")

#: What a file is said to have: `draw` in sampling.py, TOP in decoding/fetched.py.
HELD = re.compile(r"(?:`([A-Za-z_][\w.]*)`|\b([A-Z][A-Z_]+)) in `?((?:[\w-]+/)*[\w-]+\.(?:py|js|cpp|h))\b")

#: Of other projects.
ELSEWHERE = {"llama.cpp", "models/speculator.py", "model_executor/models/medusa.py", "aoti_runtime/interface.h"}

#: What stands for any name: `ui/tabs/NAME.py`.
ANY = ("NAME", "KIND", "AREA")


def prose_of(path: pathlib.Path) -> str:
    """The prose of a file: all of a document, the docstrings and comments of code."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return text
    if path.suffix != ".py":
        return "\n".join(re.findall(r"(?<!:)//.*|/\*(?:.|\n)*?\*/", text))
    nodes = (
        node for node in ast.walk(ast.parse(text)) if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
    )
    comments = (
        part.string for part in tokenize.generate_tokens(io.StringIO(text).readline) if part.type == tokenize.COMMENT
    )
    return "\n".join([*filter(None, map(ast.get_docstring, nodes)), *comments])


def is_there(name: str) -> bool:
    """A place may be named by its end alone: `few_rows.cpp`."""
    return name in ELSEWHERE or any(word in name for word in ANY) or any(place.endswith(f"/{name}") for place in PLACES)


def is_module(name: str) -> bool:
    """A module of the package, or what one defines."""
    *parts, last = name.split(".")
    homes = [ROOT.joinpath(*parts).with_suffix(".py"), ROOT.joinpath(*parts, "__init__.py")]
    defined = any(re.search(rf"\b{last}\b", home.read_text(encoding="utf-8")) for home in homes if home.is_file())
    return defined or ROOT.joinpath(*parts, last).is_dir() or ROOT.joinpath(*parts, f"{last}.py").is_file()


def test_files_and_modules_that_are_named_exist():
    lost = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in FILES
        if path.suffix in (".py", ".md", ".js", ".css", ".cpp", ".h", ".c")
        for pattern, is_found in ((PATH, is_there), (MODULE, is_module))
        for name in pattern.findall(prose_of(path))
        if not is_found(name)
    ]
    assert not lost, "\n".join(lost)


def has(file: str, name: str) -> bool:
    """Whether some file of that name has this name, or the last part of a dotted one."""
    last = re.compile(rf"\b{re.escape(name.rpartition('.')[2])}\b")
    return any(
        last.search(path.read_text(encoding="utf-8")) for path in FILES if f"/{path.as_posix()}".endswith(f"/{file}")
    )


def test_what_a_file_is_said_to_have_is_there():
    said = [
        (path, name or constant, file)
        for path in FILES
        if path.suffix in (".py", ".md", ".js", ".css", ".cpp", ".h", ".c")
        for name, constant, file in HELD.findall(prose_of(path))
    ]
    lost = [f"{path.relative_to(ROOT)}: {name} in {file}" for path, name, file in said if not has(file, name)]
    assert len(said) > 20 and not lost, "\n".join(lost)
