"""Makes Gradescope's results.json from what `specviz grade --json` wrote: a test for each function."""

import json
import pathlib
import sys


def results(grades: dict) -> dict:
    tests = []
    for file in grades["files"]:
        if file["fault"]:
            tests.append({"name": file["file"], "score": 0, "max_score": grades["most"], "output": file["fault"]})
        for verdict in file["verdicts"]:
            parts = list(verdict["parts"].values())
            told = "\n".join([verdict["sentence"], *verdict["counterexample"]])
            score = {"score": round(10 * sum(parts) / len(parts), 2), "max_score": 10}
            tests.append({"name": verdict["function"], "output": told} | score)
    return {"score": sum(test["score"] for test in tests), "tests": tests}


if __name__ == "__main__":
    given, written = map(pathlib.Path, sys.argv[1:])
    written.write_text(json.dumps(results(json.loads(given.read_text(encoding="utf-8")))), encoding="utf-8")
