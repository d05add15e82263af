"""For the test suites of inference engines: whether what they sample follows the target. NumPy alone, no model.

assertion    `assert_lossless`, whose false alarms and power are promised
wrong_rules  `WRONG_RULES`, which such a test must find, and `TOKEN_BY_TOKEN`, which it must not
"""

from specviz.testing.assertion import Checked, assert_lossless
from specviz.testing.wrong_rules import TOKEN_BY_TOKEN, WRONG_RULES, TokenRule

__all__ = ["TOKEN_BY_TOKEN", "WRONG_RULES", "Checked", "TokenRule", "assert_lossless"]
