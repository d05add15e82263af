"""The trace file: what is saved is what is loaded, and nothing foreign or damaged gets in."""

import json

import pytest
from handmade import a_run, rounds_of
from refusal import refused

from specviz.records.runs import Run

RUN = a_run(rounds_of("aaa", "ard", ""), prompt='Ünïcode 😀 שלום "quoted" <b>\x00\n')


def test_a_saved_run_is_plain_json_under_the_schemas_name_and_loads_as_an_equal_run(tmp_path):
    path = tmp_path / "trace.json"
    RUN.save(path)
    assert Run.load(path) == Run.from_dict(RUN.to_dict()) == RUN
    trace = json.loads(path.read_bytes().decode("utf-8"))
    assert trace["schema"] == "specviz.run/1"
    second = trace["rounds"][1]["drafted"]
    assert (second[1]["outcome"], second[2]["u"]) == ("rejected", None)
    assert json.loads(json.dumps(RUN.to_dict())) == trace


WHOLE = json.dumps(RUN.to_dict())


def changed(value, *place) -> bytes:
    """The run's file with another value at this place, or without one for None."""
    data = json.loads(WHOLE)
    *outer, last = place
    inner = data
    for key in outer:
        inner = inner[key]
    if value is None:
        del inner[last]
    else:
        inner[last] = value
    return json.dumps(data).encode()


TOKEN = ("rounds", 0, "drafted", 0)
DAMAGED = {
    "nothing": b"",
    "not JSON": b"The trace of a fox.",
    "cut off": WHOLE.encode()[:-40],
    "NUL bytes": bytes(200),
    "not text": b"\xff\xfe\x00\x81",
    "a list": b"[1, 2, 3]",
    "a number": b"3",
    "endless nesting": b"[" * 200_000,
    "no schema": changed(None, "schema"),
    "another schema": changed("specviz.bench/1", "schema"),
    "a later schema": changed("specviz.run/2", "schema"),
    "a missing field": changed(None, "rounds"),
    "a missing field deep inside": changed(None, *TOKEN, "outcome"),
    "a wrong type": changed("seven", "seed"),
    "a wrong type deep inside": changed("often", *TOKEN, "p"),
    "an unknown outcome": changed("perhaps", *TOKEN, "outcome"),
    "an impossible setting": changed(-1, "sampling", "temperature"),
    "rounds out of order": changed(json.loads(WHOLE)["rounds"][::-1], "rounds"),
    "a round far away": changed(10**9, "rounds", 0, "index"),
    "a parent that is not there": changed(7, *TOKEN, "parent"),
    "a token that continues itself": changed(0, *TOKEN, "parent"),
    "a judged token without its coin": WHOLE.replace('"u": 0.125', '"u": null', 1).encode(),
    "candidates missing": changed([], "rounds", 0, "top"),
    "pieces missing": changed([], "rounds", 0, "pieces"),
    "a probability above 1": changed(7.0, *TOKEN, "p"),
    "a coin below 0": changed(-0.5, *TOKEN, "u"),
    "a candidate that is likelier than certain": changed([[1, 1.5]], "rounds", 0, "top", 0, "p"),
    "NaN": changed(float("nan"), *TOKEN, "p"),
    "infinity": changed(float("inf"), "rounds", 0, "seconds", "total"),
    "NaN among the settings": changed({"max_ngram": float("nan")}, "settings"),
    "infinity in a list": changed([[1, float("-inf")]], "rounds", 0, "top", 0, "p"),
    "a number beyond measure": changed(0.5, *TOKEN, "p").replace(b"0.5", b"1e999"),
    "seconds whose sum no number holds": changed(1e308, "rounds", 0, "seconds", "draft"),
    "a round that took no time": changed(0.0, "rounds", 0, "seconds", "total"),
    "a negative token": changed(-1, *TOKEN, "id"),
    "more parameters than a float can count": changed(10**400, "pair", "target_parameters"),
    "a coin set in no known form": changed("3.2", "coins"),
    "half a character": changed("\ud800", "text"),
    "a number of too many digits": WHOLE.replace('"seed": 0', '"seed": ' + "9" * 5000).encode(),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_or_foreign_file_is_refused_with_a_sentence(damage, tmp_path):
    path = tmp_path / "trace.json"
    path.write_bytes(DAMAGED[damage])
    with refused("trace") as caught:
        Run.load(path)
    assert caught.value.message.startswith("Th") and caught.value.message.endswith(".")
    for place in (tmp_path / "missing.json", tmp_path):
        with refused("trace", "cannot be read"):
            Run.load(place)


def test_a_setting_that_cannot_be_is_told_in_its_own_sentence(tmp_path):
    (tmp_path / "trace.json").write_bytes(DAMAGED["an impossible setting"])
    with refused("trace", r"^The trace is damaged at sampling: Temperature must be .*, not −1\.0\.$"):
        Run.load(tmp_path / "trace.json")


@pytest.mark.parametrize("data", [None, 3, "text", [], {}, {"schema": None}])
def test_what_is_no_dictionary_of_a_run_is_refused(data):
    with refused("trace", "not a specviz trace"):
        Run.from_dict(data)


def test_a_trace_that_an_editor_marked_as_utf_8_is_read(tmp_path):
    run, path = a_run(rounds_of("aa")), tmp_path / "trace.json"
    run.save(path)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert Run.load(path) == run
