"""What a Space, a container and a reader rely on: front matter, image, files, settings and documents."""

import importlib.util
import json
import pathlib
import re
import subprocess

import pytest
from packaging.specifiers import SpecifierSet

from specviz.records.settings import PLAIN
from tools.acceptance_table import table as acceptance_table
from tools.bench_table import table
from tools.engines.measuring import PARTS
from tools.engines.table import table as engines_table

ROOT = pathlib.Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
#: What there is to read, by its path.
DOCUMENTS = {path: path.read_text(encoding="utf-8") for path in (ROOT / "README.md", *ROOT.glob("docs/*.md"))}
DEPLOYING = DOCUMENTS[ROOT / "docs" / "deploying.md"]
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
REQUIREMENTS = (ROOT / "requirements.txt").read_text(encoding="utf-8")

#: What ZeroGPU takes, oldest first, under Python 3.12 (docs/deploying.md names the source).
ZERO_GPU_TORCH = ("2.8.0", "2.9.1", "2.10.0", "2.11.0")
#: torch's releases.
TORCH = ("2.7.1", "2.8.0", "2.9.0", "2.9.1", "2.10.0", "2.11.0", "2.12.0", "2.12.1", "2.13.0", "2.14.0", "2.14.1")

#: The models that come with the project.
PARTS_THERE = [*(ROOT / "assets" / "models").glob("*/config.json")]

#: Bytes above which a file belongs into Git LFS, or elsewhere.
LARGEST = 9 * 1000 * 1000


def front_matter():
    """The README's YAML head: one `key: value` a line, which is all that Spaces needs."""
    found = re.match(r"---\n(.*?)\n---\n", README, re.DOTALL)
    assert found, "the README starts with a front matter between lines of ---"
    pairs = (line.split(":", 1) for line in found[1].splitlines())
    return {key.strip(): value.strip().strip("'\"") for key, value in pairs}


def tracked_files():
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def test_the_space_runs_the_gradio_that_is_required():
    pin = re.search(r"^gradio==(\S+)", REQUIREMENTS, re.MULTILINE)
    assert pin, "gradio is pinned"
    head = front_matter()
    assert head["sdk"] == "gradio"
    assert head["sdk_version"] == pin[1]
    assert (ROOT / head["app_file"]).is_file() and len(head["short_description"]) <= 60


def test_a_space_gets_a_torch_that_zero_gpu_takes():
    def range_of(text):
        wanted = re.search(r"^torch(\S+)", text, re.MULTILINE)
        assert wanted
        return SpecifierSet(wanted[1])

    anywhere = range_of(REQUIREMENTS)
    first = range_of((ROOT / "pre-requirements.txt").read_text(encoding="utf-8"))
    # What the platform has installed stays; where it has installed nothing, pip takes the newest.
    assert list((first & anywhere).filter(ZERO_GPU_TORCH)) == list(ZERO_GPU_TORCH)
    assert [*(first & anywhere).filter(TORCH)][-1] == ZERO_GPU_TORCH[-1]
    assert front_matter()["python_version"] == "3.12"


def test_the_image_is_what_spaces_expect():
    assert re.search(r"--uid 1000\b", DOCKERFILE) and re.search(r"^USER \S+", DOCKERFILE, re.MULTILINE)
    assert re.search(r"^EXPOSE 7860$", DOCKERFILE, re.MULTILINE)
    assert re.search(r"^HEALTHCHECK ", DOCKERFILE, re.MULTILINE)
    assert "GRADIO_SERVER_PORT=7860" in DOCKERFILE and "GRADIO_SERVER_NAME=0.0.0.0" in DOCKERFILE
    assert re.search(r"^ARG DEVICE=cpu$", DOCKERFILE, re.MULTILINE)
    # It can compile passes, for a CPU as for a GPU, and whoever runs in it may keep them.
    installs = r"^RUN apt-get update && apt-get install .* g\+\+ "
    assert re.search(installs, DOCKERFILE, re.MULTILINE | re.DOTALL)
    assert DOCKERFILE.index("g++") < DOCKERFILE.index("USER user")
    # Whoever else it is started as (docker run --user) can read what is installed, and looks for it there.
    assert re.search(r"useradd .* && chmod 755 /home/user$", DOCKERFILE, re.MULTILINE)
    assert re.search(r"^ENV HOME=/home/user ", DOCKERFILE, re.MULTILINE)
    # What it copies is there.
    copied = re.findall(r"^COPY --chown=user (.+) \S+$", DOCKERFILE, re.MULTILINE)
    assert [name for sources in copied for name in sources.split() if not (ROOT / name).exists()] == []


def test_no_file_is_too_large_for_git():
    assert {path.name: path.stat().st_size for path in tracked_files() if path.stat().st_size > LARGEST} == {}


@pytest.mark.parametrize("source", ["specviz/ui/deployment.py", "Dockerfile"])
def test_every_environment_variable_is_documented(source):
    names = set(re.findall(r"SPECVIZ_[A-Z_]+", (ROOT / source).read_text(encoding="utf-8")))
    assert names, "there is something to document"
    assert {name for name in names if f"`{name}`" not in DEPLOYING} == set()


def test_the_readme_is_short_and_leads_to_every_page():
    assert len(README.splitlines()) <= 150
    assert [path.name for path in DOCUMENTS if path.parent != ROOT and f"](docs/{path.name})" not in README] == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_a_document_names_no_variable_that_does_nothing(path):
    trees = (ROOT / "specviz", ROOT / "tools")
    sources = "".join(file.read_text(encoding="utf-8") for tree in trees for file in tree.rglob("*.py"))
    assert {name for name in re.findall(r"SPECVIZ_[A-Z_]+", DOCUMENTS[path]) if name not in sources} == set()


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_a_documents_pictures_and_commands_are_there(path):
    links = re.findall(r"\]\((?!https?://|#)([^)\s]+)\)", DOCUMENTS[path])
    assert [link for link in links if not (path.parent / link.split("#")[0]).exists()] == []
    modules = set(re.findall(r"python -m ((?:specviz|tools)[\w.]*)", DOCUMENTS[path]))
    assert [name for name in modules if importlib.util.find_spec(name) is None] == []


def test_no_file_names_a_folder_of_the_machine_that_made_it():
    ours = [path for path in tracked_files() if path.suffix in (".json", ".md") and "tests" not in path.parts]
    homes = re.compile(r"(?<![\w.}>/-])/(?:root|work|home/\w+|Users/\w+|tmp)/")
    assert len(ours) > 50
    assert [path.name for path in ours if homes.search(path.read_text(encoding="utf-8"))] == []


def test_the_tables_of_figures_are_those_of_the_reports():
    reports = sorted((ROOT / "docs" / "figures").glob("bench-*.json"))
    tables = [table(json.loads(path.read_text(encoding="utf-8"))).strip() for path in reports]
    assert tables and [one for one in tables if one not in DOCUMENTS[ROOT / "docs" / "measuring.md"]] == []


def test_the_table_of_acceptance_is_that_of_its_figures_and_names_every_part():
    folder, told = (
        ROOT / "docs" / "figures" / "acceptance",
        (ROOT / "assets" / "models" / "README.md").read_text("utf-8"),
    )
    assert acceptance_table(folder) in told
    assert {path.stem for path in folder.glob("*.json")} == {*(path.parent.name for path in PARTS_THERE)} - {"target"}


def test_the_table_of_engines_is_that_of_their_report():
    report = json.loads((ROOT / "docs" / "figures" / "engines.json").read_text(encoding="utf-8"))
    assert engines_table(report).strip() in DOCUMENTS[ROOT / "docs" / "training.md"]
    assert {row["part"] for row in report["rows"]} == {PLAIN, *PARTS}
