"""What a Space and a container rely on: the README's front matter, the image, the files and the settings."""

import pathlib
import re
import subprocess

import pytest

ROOT = pathlib.Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
REQUIREMENTS = (ROOT / "requirements.txt").read_text(encoding="utf-8")

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
    assert (ROOT / head["app_file"]).is_file()


def test_the_short_description_is_one_that_a_space_takes():
    assert len(front_matter()["short_description"]) <= 60


def test_the_image_is_what_spaces_expect():
    assert re.search(r"--uid 1000\b", DOCKERFILE) and re.search(r"^USER \S+", DOCKERFILE, re.MULTILINE)
    assert re.search(r"^EXPOSE 7860$", DOCKERFILE, re.MULTILINE)
    assert re.search(r"^HEALTHCHECK ", DOCKERFILE, re.MULTILINE)
    assert "GRADIO_SERVER_PORT=7860" in DOCKERFILE and "GRADIO_SERVER_NAME=0.0.0.0" in DOCKERFILE
    assert re.search(r"^ARG DEVICE=cpu$", DOCKERFILE, re.MULTILINE)


def test_the_image_for_a_cpu_can_compile_passes():
    installs = r"^RUN if \[ \"\$DEVICE\" = cpu \].*apt-get install .* g\+\+ "
    assert re.search(installs, DOCKERFILE, re.MULTILINE | re.DOTALL)
    # Whoever runs in it may keep them.
    assert DOCKERFILE.index("g++") < DOCKERFILE.index("USER user")


def test_everything_the_image_copies_is_there():
    for sources in re.findall(r"^COPY --chown=user (.+) \S+$", DOCKERFILE, re.MULTILINE):
        for name in sources.split():
            assert (ROOT / name).exists(), name


def test_no_file_is_too_large_for_git():
    assert {path.name: path.stat().st_size for path in tracked_files() if path.stat().st_size > LARGEST} == {}


@pytest.mark.parametrize("source", ["specviz/ui/deployment.py", "Dockerfile"])
def test_every_environment_variable_is_documented(source):
    names = set(re.findall(r"SPECVIZ_[A-Z_]+", (ROOT / source).read_text(encoding="utf-8")))
    assert names, "there is something to document"
    assert {name for name in names if f"`{name}`" not in README} == set()


def test_the_readme_documents_no_variable_that_does_nothing():
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "specviz").rglob("*.py"))
    assert {name for name in re.findall(r"SPECVIZ_[A-Z_]+", README) if name not in sources} == set()


def test_the_readmes_pictures_and_files_are_there():
    links = re.findall(r"\]\((?!https?://|#)([^)\s]+)\)", README)
    assert [link for link in links if not (ROOT / link.split("#")[0]).exists()] == []
