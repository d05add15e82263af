"""Students' files: right ones in many styles, and wrong ones by one change each."""

import random

#: By function, ways to write it that are all right.
ACCEPTS = (
    "return bool(u < p[token] / q[token])",
    "return u < np.minimum(1.0, p[token] / q[token])",
    "return u * q[token] < p[token]",
    'with np.errstate(divide="ignore"):\n        return bool(np.log(u) < np.log(p[token]) - np.log(q[token]))',
    "return u < min(1, p[token] / q[token]) if p[token] > 0 else False",
)
RESIDUALS = (
    "r = np.maximum(0, p - q)\n    return r / r.sum() if r.sum() > 0 else p",
    "r = (p - q).clip(min=0)\n    total = r.sum()\n    return p.copy() if total == 0 else r / total",
    'r = np.where(p > q, p - q, 0.0)\n    with np.errstate(divide="ignore"):\n'
    "        return np.exp(np.log(r) - np.log(r.sum())) if r.any() else p",
    "p -= np.minimum(p, q)\n    return p / p.sum() if p.any() else q",
)
DRAWS = (
    'return int(np.searchsorted(np.cumsum(probs), u, side="right"))',
    "return int((np.cumsum(probs) <= u).sum())",
    "total = 0.0\n    for id, part in enumerate(probs):\n        total += part\n        if u < total:\n"
    "            return id\n    return id",
    "return np.argmax(np.cumsum(probs) > u)",
)
VERIFIES = (
    """for i, token in enumerate(tokens):
        if not accept(p[i], q[i], token, us[i]):
            return i, draw(residual(p[i], q[i]), u_next)
    return len(tokens), draw(p[-1], u_next)""",
    """rows = np.arange(len(tokens))
    passed = us < p[rows, tokens] / q[rows, tokens]
    n = int(np.append(passed, False).argmin())
    padded = np.vstack([q, np.zeros((1, p.shape[1]))])
    return n, draw(residual(p[n].copy(), padded[n]), u_next)""",
)
SPECULATES = (
    # Drafts and coins beyond the length are cut.
    """ids, end = list(prompt), len(prompt) + max_new_tokens
    while len(ids) < end:
        drafted, q = [], []
        for _ in range(num_draft_tokens):
            q.append(draft(ids + drafted)[-1])
            drafted.append(draw(q[-1], rng.random()))
        p = target(ids + drafted)[len(ids) - 1 :]
        us = [rng.random() for _ in drafted]
        n, token = verify(p, np.array(q), drafted, np.array(us), rng.random())
        ids += drafted[:n] + [token]
    return [int(id) for id in ids[len(prompt) : end]]""",
    # Never drafts what could not be kept, flips coins only as they are needed, and reads the prompt on its own.
    """target(prompt)
    new = []
    while len(new) < max_new_tokens:
        drafted, rows = [], []
        for _ in range(min(num_draft_tokens, max_new_tokens - len(new) - 1)):
            rows.append(draft(prompt + new + drafted)[-1])
            drafted.append(draw(rows[-1], rng.random()))
        p = target(np.array(prompt + new + drafted))[-len(drafted) - 1 :]
        for row, (token, q) in enumerate(zip(drafted, rows)):
            if rng.random() >= p[row][token] / q[token]:
                new.append(draw(residual(p[row], q), rng.random()))
                break
            new.append(token)
        else:
            new.append(draw(p[-1], rng.random()))
    return new""",
)


def file_of(accept: str, residual: str, draw: str, verify: str, speculate: str, only: str = "") -> str:
    """A student's file. only: the one function that is there to be graded; the others have other names."""
    file = f"""import numpy as np

def draw(probs, u):
    {draw}

def accept(p, q, token, u):
    {accept}

def residual(p, q):
    {residual}

def verify(p, q, tokens, us, u_next):
    {verify}

def speculate(target, draft, prompt, num_draft_tokens, max_new_tokens, rng):
    {speculate}
"""
    for name in ("accept", "residual", "verify", "speculate"):
        if only and name != only:
            file = file.replace(f"{name}(", f"my_{name}(")
    return file


def right_files(many: int) -> dict[str, str]:
    """Right files, each of parts that are chosen at random."""
    chance = random.Random(0)
    parts = (ACCEPTS, RESIDUALS, DRAWS, VERIFIES, SPECULATES)
    return {f"right{place}.py": file_of(*map(chance.choice, parts)) for place in range(many)}


PLAIN = (ACCEPTS[0], RESIDUALS[0], DRAWS[0], VERIFIES[0], SPECULATES[0])

#: The function that is graded, what is replaced in a right file and by what, and how the report must begin.
WRONG: tuple[tuple[str, str, str, str], ...] = (
    ("accept", "u < p[token] / q[token]", "u < q[token] / max(p[token], 1e-9)", "p and q are swapped"),
    ("accept", "u < p[token] / q[token]", "u < p[token]", "q is left out"),
    ("accept", "u < p[token] / q[token]", "u <= p[token] / q[token]", "It says ≤"),
    ("accept", "u < p[token] / q[token]", "token == np.argmax(p)", "Tokens are accepted by argmax"),
    ("accept", "u < p[token] / q[token]", "u > p[token] / q[token]", "The coin is read the wrong way round"),
    ("accept", "u < p[token] / q[token]", "p[token] >= q[token]", "Tokens pass without a coin"),
    ("accept", "u < p[token]", "u < (p**2 / (p**2).sum())[token]", "A temperature is on one side only"),
    ("residual", RESIDUALS[0], "return p - q", "The residual is not clipped"),
    ("residual", "np.maximum(0, p - q)", "abs(p - q)", "The residual is not clipped"),
    ("residual", "r / r.sum() if r.sum() > 0 else p", "r if r.any() else p", "The residual is not normalised"),
    ("residual", "r / r.sum() if r.sum() > 0 else p", "r / r.sum()", "The residual where p equals q is 0 / 0"),
    ("residual", "np.maximum(0, p - q)", "np.maximum(0, q - p)", "p and q are swapped"),
    ("residual", "np.maximum(0, p - q)", "p", "After a rejection the next token is drawn from p"),
    ("residual", RESIDUALS[0], "r = np.exp(p - q)\n    return r / r.sum()", "The residual is put through a softmax"),
    ("residual", "r / r.sum() if", "np.exp(r) / np.exp(r).sum() if", "The residual is put through a softmax"),
    ("verify", "residual(p[i], q[i])", "p[i]", "After a rejection the next token is drawn from p"),
    ("verify", "residual(p[i], q[i])", "q[i]", "After a rejection the next token is drawn from q"),
    ("verify", "r / r.sum() if r.sum() > 0 else p", "r", "The residual is not normalised"),
    ("verify", "draw(p[-1], u_next)", "None", "The bonus token is missing"),
    ("verify", "draw(p[-1], u_next)", "draw(q[-1], u_next)", "The bonus token is drawn from q"),
    ("verify", "draw(p[-1], u_next)", "draw(p[-2], u_next)", "The bonus token is drawn from the wrong row"),
    ("verify", "accept(p[i], q[i]", "accept(p[i + 1], q[i]", "It is off by one row"),
    ("verify", "accept(p[i], q[i]", "accept(p[i - 2], q[i]", "It is off by two rows"),
    ("verify", "us[i])", "us[0])", "One coin judges all tokens of a draft"),
    ("verify", "q[i]), u_next", "q[i]), us[i]", "A coin is used twice: the coin that rejected"),
    ("verify", "return i, ", "return i + 1, ", "verify is wrong in a way that has no name here"),
    ("verify", 'side="right"', 'side="left"', "It says ≤"),
    ("speculate", "residual(p[i], q[i])", "p[i]", "After a rejection the next token is drawn from p"),
    ("speculate", "draw(q[-1], rng.random())", "int(q[-1].argmax())", "The drafts are greedy, but judged by a soft q"),
    ("speculate", "draw(q[-1], ", "draw(q[-1]**2 / (q[-1]**2).sum(), ", "Drafts are drawn at another temperature"),
    (
        "speculate",
        "ids += drafted[:n] + [token]",
        "new += drafted[:n] + [token]; ids += drafted + [token]",
        "The cache",
    ),
    ("speculate", "rng.random() for _ in drafted", "u for u in coins", "A coin is used twice: the coin that drew"),
    ("speculate", "+ [token]", "+ [token] * (n < len(drafted))", "The bonus token is missing"),
    ("speculate", "+ [token]", "+ [token] * (1 + (n < len(drafted)))", "The next token is appended twice"),
    ("speculate", "+ [token]", "+ [token] * 2", "The next token is appended twice"),
    ("speculate", "[len(ids) - 1 :]", "[len(ids) - 2 :]", "It is off by one row"),
    ("speculate", "[len(ids) - 1 :]", "[len(ids) - 3 :]", "It is off by two rows"),
    ("speculate", "rng.random() for _ in drafted", "u for u in [rng.random()] * len(drafted)", "One coin judges"),
    ("speculate", "[len(prompt) : end]", "[len(prompt) :]", "It gives more than max_new_tokens"),
    (
        "speculate",
        "p = target",
        "[target(ids) for _ in drafted]; p = target",
        "The target is asked once for each token",
    ),
    (
        "speculate",
        "rng.random() for _ in drafted",
        "np.random.rand() for _ in drafted",
        "The same coins gave two texts",
    ),
)

#: What else the wrong files need: their own list of new ids, and of the coins that drew.
ALSO = (
    ("drafted, q = [], []", "drafted, q, coins = [], [], []"),
    ("while len(ids) < end:", "new = []\n    while len(new or ids[len(prompt) :]) < max_new_tokens:"),
    ("ids[len(prompt) : end]", "(new or ids[len(prompt) :])[:max_new_tokens]"),
    ("draw(q[-1], rng.random())", "draw(q[-1], coins.append(rng.random()) or coins[-1])"),
)


def wrong_files() -> dict[str, str]:
    """Each wrong in one way; the name begins with the place in `WRONG`."""
    files = {}
    for place, (name, old, new, _) in enumerate(WRONG):
        file = file_of(*PLAIN, only=name)
        old, new = (text.replace("accept(", "my_accept(").replace("residual(", "my_residual(") for text in (old, new))
        old, new = (text.replace("my_my_", "my_") for text in (old, new))
        also = [change for change in ALSO if "new +=" in new or "coins" in new]
        for before, after in [(old, new), *also]:
            assert before in file or (before, after) in also, (place, before)
            file = file.replace(before, after)
        files[f"wrong{place:02}.py"] = file
    return files
