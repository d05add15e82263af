"""What is set for all tests: their order, marks of garbage, and the fixtures of the browser."""

import functools
import gc
import os
import pathlib
import signal
from collections.abc import Iterator

import pytest

# Two files run at a time, and the models are small: more threads would only wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Kernels are built once for all tests; programs that somebody compiled for other work on this machine are not taken.
home = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
os.environ.setdefault("SPECVIZ_CACHE", str(pathlib.Path(home) / "specviz" / "tests"))

# What a script starts in the background ignores Ctrl-C, and so would all that tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = ["browser", "live_engines", "replayed"]

#: The files that take longest, in the order in which they begin: one that began last would run alone at the end.
LONGEST = (
    *("passes/test_compiled_passes", "passes/test_few_rows", "ui/test_page", "passes/test_compiled_layers"),
    *(
        "test_command_line",
        "passes/test_static_passes",
        "test_published_model",
        "passes/test_compiler",
        "ui/tabs/test_own_model",
    ),
    *("decoding/test_lossless", "promises/test_greedy_equality", "promises/test_exact_sampling", "ui/test_tour"),
    *("models/test_checkpoints", "ui/tabs/test_why_tab", "ui/test_accessibility", "decoding/test_device_rounds"),
    *("ui/test_background", "views/test_static_site", "ui/test_start", "ui/tabs/test_compare_tab"),
    *("views/test_playback", "views/test_picture", "drafters/test_published_assistants", "training/test_training"),
    *("drafters/test_published_heads", "drafters/test_published_masks", "models/test_any_size", "bench/test_bench"),
)


#: Fixtures that take long: compiled programs, the whole app, real engines.
SLOW = {"compiled", "met", "page_url", "viewer", "llama_cpp", "vllm"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first; what uses a slow fixture is marked as wide."""
    for item in items:
        if SLOW.intersection(item.fixturenames):
            item.add_marker("wide")
    places = {name: place for place, name in enumerate(LONGEST)}
    folder = pathlib.Path(__file__).parent
    items.sort(key=lambda item: places.get(item.path.relative_to(folder).with_suffix("").as_posix(), len(places)))


def pytest_collection_finish() -> None:
    """What was imported stays, and need not be looked through for garbage again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


@pytest.fixture(autouse=True, scope="session")
def memory_measured_once() -> Iterator[None]:
    """What memory gives is the machine's, and not each pair's that is loaded: a fifth of a second."""
    from specviz.models import loading  # only now: it reads where its cache lies

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(loading, "measured_memory", functools.cache(loading.measured_memory))
        yield
