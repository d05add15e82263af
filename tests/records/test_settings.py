"""Settings from Python: what cannot be is refused by the name of its field."""

import pytest

from specviz.records.errors import SpecvizError
from specviz.records.settings import DraftParams, RunSettings, SamplingParams

NAN = float("nan")

#: Kind of settings -> field -> values that it refuses.
REFUSED = {
    SamplingParams: {
        "temperature": [-1, NAN, 1e-9],
        "top_p": [0, 2],
        "top_k": [-1, 1.5],
        "min_p": [1.5],
    },
    DraftParams: {
        "branches": [0, 9, 2.5, True],
        "confidence": [1, -0.1, NAN, "high"],
        "exit_layer": [0],
        "bits": [5, 8.0],
    },
    RunSettings: {
        "num_draft_tokens": [0, 10**6, 2.5, -1, "Auto", "", None, True],
        "max_new_tokens": [0, True],
        "seed": [-1],
        "stop": ["end"],
        "coins": [
            *("3.2", "3.2=1", "3.2=1.5", "0.2=0.5", "3.0=0.5", "3=0.5", "a.b=c", "3.2=nan", "3.2=-0.1"),
            *("3.2=0.99999999", "1.1=0.5 " * 65, 7),
        ],
    },
}
CASES = [(kind, name, value) for kind, fields in REFUSED.items() for name, values in fields.items() for value in values]


@pytest.mark.parametrize("kind, name, value", CASES)
def test_what_cannot_be_is_refused_by_the_name_of_its_field(kind, name, value):
    with pytest.raises(SpecvizError) as caught:
        kind(**({"prompt": "x"} if kind is RunSettings else {}), **{name: value})
    assert caught.value.field == name
