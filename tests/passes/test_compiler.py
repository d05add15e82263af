"""The compiler's worker: a process that ends when it is told to, or when its server dies, and leaves nothing."""

from __future__ import annotations

import subprocess
import sys
import threading
import types

import psutil
import pytest
import torch
from running import PATIENCE, wait_until

from specviz.passes import compiler
from specviz.records.errors import SpecvizError


def worker_of(code: str, tmp_path, monkeypatch) -> compiler.Worker:
    """A worker that runs Python code of ours when it is told to build something."""
    monkeypatch.setenv("SPECVIZ_CACHE", str(tmp_path / "programs"))
    real = subprocess.Popen

    def started(command, **options):
        *_, scratch = command
        script = "import subprocess, sys\nfrom specviz.passes import compiler\n"
        script += f"def build(static, path):\n    {code}\n"
        script += "compiler.build = build\ncompiler.main(sys.argv[1:])"
        return real([sys.executable, "-c", script, scratch], **options)

    monkeypatch.setattr(subprocess, "Popen", started)
    return compiler.Worker()


def job(tmp_path, name: str = "model") -> compiler.ProgramJob:
    return compiler.ProgramJob(types.SimpleNamespace(name=name), tmp_path / f"{name}.pt2")


def leftovers(tmp_path) -> list[str]:
    """What workers left, beside the folder that all of them share."""
    return [path.name for path in (tmp_path / "programs").iterdir() if path.name != "inductor"]


SLEEPING = "subprocess.run([sys.executable, '-c', 'import time; time.sleep(99)'])"


def test_a_compiler_goes_on_after_a_failure_and_halting_ends_it_and_what_it_started(tmp_path, monkeypatch):
    code = f"""
    if static.name == 'bad': raise OSError('no space left')
    if static.name == 'slow': {SLEEPING}
    path.write_text('made')"""
    halt, bad, good, slow = threading.Event(), *(job(tmp_path, name) for name in ("bad", "good", "slow"))
    with worker_of(code, tmp_path, monkeypatch) as worker:
        with pytest.raises(SpecvizError, match="Compiling a pass of bad failed: OSError: no space left"):
            worker.make(bad, halt)
        worker.make(good, halt)
        assert good.path.read_text() == "made" and not bad.path.exists()

        waiting = threading.Thread(target=worker.make, args=[slow, halt])
        waiting.start()
        process = psutil.Process(worker.process.pid)
        wait_until(lambda: process.children())
        started = [process, *process.children(recursive=True)]
        halt.set()
        waiting.join(PATIENCE)
        assert not waiting.is_alive()
        psutil.wait_procs(started, timeout=PATIENCE)
        assert [one for one in started if one.is_running() and one.status() != psutil.STATUS_ZOMBIE] == []
    assert leftovers(tmp_path) == []


def test_a_compiler_whose_server_was_killed_ends_too_and_leaves_nothing(tmp_path, monkeypatch):
    worker = worker_of(SLEEPING, tmp_path, monkeypatch)

    order = tmp_path / "order.pt"
    torch.save((None, tmp_path / "made.pt2"), order)
    worker.process.stdin.write(f"{order}\n".encode())
    process = psutil.Process(worker.process.pid)
    wait_until(lambda: process.children())
    (child,) = process.children()
    # What the death of this process would do.
    worker.process.stdin.close()
    assert worker.process.wait(PATIENCE) == 1
    psutil.wait_procs([child], timeout=PATIENCE)
    assert not child.is_running()
    assert leftovers(tmp_path) == []
