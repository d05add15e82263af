"""The trace file: what is saved is what is loaded, and nothing foreign or damaged gets in."""

import json

import pytest
from handmade import a_run, rounds_of
from refusal import refused

from specviz.records.runs import Run

RUN = a_run(rounds_of("aaa", "ard", ""), prompt='Ünïcode 😀 שלום "quoted" <b>\x00\n')


def test_a_saved_run_loads_as_an_equal_run(tmp_path):
    path = tmp_path / "trace.json"
    RUN.save(path)
    assert Run.load(path) == RUN


def test_the_file_is_plain_json_under_the_schemas_name(tmp_path):
    path = tmp_path / "trace.json"
    RUN.save(path)
    trace = json.loads(path.read_bytes().decode("utf-8"))
    assert trace["schema"] == "specviz.run/1"
    assert trace["rounds"][1]["drafted"][1]["outcome"] == "rejected"
    assert trace["rounds"][1]["drafted"][2]["u"] is None


def test_the_dictionary_form_has_only_what_json_has():
    def keys(value):
        if isinstance(value, dict):
            yield from value
        for inner in value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ():
            yield from keys(inner)

    assert all(isinstance(key, str) for key in keys(RUN.to_dict()))
    assert Run.from_dict(RUN.to_dict()) == RUN


def changed(change):
    """The run's file with one thing changed in it."""
    data = json.loads(json.dumps(RUN.to_dict()))
    change(data)
    return json.dumps(data).encode()


def first_token(data):
    return data["rounds"][0]["drafted"][0]


DAMAGED = {
    "nothing": b"",
    "not JSON": b"The trace of a fox.",
    "cut off": changed(lambda data: None)[:-40],
    "NUL bytes": bytes(200),
    "not text": b"\xff\xfe\x00\x81",
    "a list": b"[1, 2, 3]",
    "a number": b"3",
    "endless nesting": b"[" * 200_000,
    "no schema": changed(lambda data: data.pop("schema")),
    "another schema": changed(lambda data: data.update(schema="specviz.bench/1")),
    "a later schema": changed(lambda data: data.update(schema="specviz.run/2")),
    "a missing field": changed(lambda data: data.pop("rounds")),
    "a missing field deep inside": changed(lambda data: first_token(data).pop("outcome")),
    "a wrong type": changed(lambda data: data.update(seed="seven")),
    "a wrong type deep inside": changed(lambda data: first_token(data).update(p="often")),
    "an unknown outcome": changed(lambda data: first_token(data).update(outcome="perhaps")),
    "an impossible setting": changed(lambda data: data["sampling"].update(temperature=-1)),
    "rounds out of order": changed(lambda data: data["rounds"].reverse()),
    "a round far away": changed(lambda data: data["rounds"][0].update(index=10**9)),
    "a parent that is not there": changed(lambda data: first_token(data).update(parent=7)),
    "a token that continues itself": changed(lambda data: first_token(data).update(parent=0)),
    "a judged token without its coin": changed(lambda data: first_token(data).update(u=None)),
    "candidates missing": changed(lambda data: data["rounds"][0].update(top=[])),
    "pieces missing": changed(lambda data: data["rounds"][0].update(pieces=[])),
    "NaN": changed(lambda data: first_token(data).update(p=float("nan"))),
    "infinity": changed(lambda data: data["rounds"][0]["seconds"].update(total=float("inf"))),
    "NaN among the settings": changed(lambda data: data["settings"].update(max_ngram=float("nan"))),
    "infinity in a list": changed(lambda data: data["rounds"][0]["top"][0]["p"].append([1, float("-inf")])),
    "a number beyond measure": changed(lambda data: first_token(data).update(p=0.5)).replace(b"0.5", b"1e999"),
    "seconds whose sum no number holds": changed(lambda data: data["rounds"][0]["seconds"].update(draft=1e308)),
    "a round that took no time": changed(lambda data: data["rounds"][0]["seconds"].update(total=0.0)),
    "a negative token": changed(lambda data: first_token(data).update(id=-1)),
    "more parameters than a float can count": changed(lambda data: data["pair"].update(target_parameters=10**400)),
    "half a character": changed(lambda data: data.update(text="\ud800")),
    "a number of too many digits": changed(lambda data: data.update(seed=0)).replace(
        b'"seed": 0', b'"seed": ' + b"9" * 5000
    ),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_or_foreign_file_is_refused_with_a_sentence(damage, tmp_path):
    path = tmp_path / "trace.json"
    path.write_bytes(DAMAGED[damage])
    with refused("trace") as caught:
        Run.load(path)
    assert caught.value.message.startswith("Th") and caught.value.message.endswith(".")


def test_a_file_that_is_not_there_and_one_that_is_a_folder_are_refused(tmp_path):
    for path in (tmp_path / "missing.json", tmp_path):
        with refused("trace", "cannot be read"):
            Run.load(path)


@pytest.mark.parametrize("data", [None, 3, "text", [], {}, {"schema": None}])
def test_what_is_no_dictionary_of_a_run_is_refused(data):
    with refused("trace", "not a specviz trace"):
        Run.from_dict(data)
