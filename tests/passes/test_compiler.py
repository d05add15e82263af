"""The compiler's worker: a process that ends when it is told to, or when its server dies, and leaves nothing."""

import os
import pickle
import subprocess
import sys
import threading
import types

import psutil
import pytest
from running import PATIENCE, wait_until
from tiny import tiny_pair, with_heads

from specviz.models.pair_passes import pass_makers
from specviz.passes import compiler, programs
from specviz.passes.kernels.few_rows import FewRows


def worker_of(code: str, tmp_path, monkeypatch, call: int = 0) -> compiler.Worker:
    """A worker that runs Python code of ours when it is told to build something."""
    monkeypatch.setenv("SPECVIZ_CACHE", str(tmp_path / "programs"))
    real = subprocess.Popen

    def started(command, **options):
        *_, scratch = command
        script = "import os, subprocess, sys\nfrom specviz.passes import compiler, programs\n"
        script += f"def build(static, path):\n    {code}\n"
        script += "programs.build = build\ncompiler.main(sys.argv[1:])"
        return real([sys.executable, "-c", script, scratch], **options)

    monkeypatch.setattr(subprocess, "Popen", started)
    return compiler.Worker(call)


def job(tmp_path, name: str = "model") -> compiler.ProgramJob:
    return compiler.ProgramJob(name, types.SimpleNamespace(name=name), tmp_path / f"{name}.pt2")


def leftovers(tmp_path) -> list[str]:
    """What workers left, beside the folder that all of them share."""
    return [path.name for path in (tmp_path / "programs").iterdir() if path.name != "inductor"]


def test_what_is_sent_to_be_compiled_holds_its_own_weights_at_most(tmp_path):
    statics, few_rows = {}, FewRows.ready()
    for role, make in pass_makers(with_heads(tiny_pair("llama")), statics, True):
        statics[role] = static = make(few_rows)
        order = compiler.order_of(compiler.ProgramJob(role, static, tmp_path / "program"))
        weights = [*static.parameters(), *static.buffers(), *static.original.parameters()]
        # Packed weights of many layers lie in one piece of memory, of 64 MB at least.
        assert len(order) < sum(weight.nbytes for weight in weights) + 100_000, role
        build, sent, path = pickle.loads(order)
        assert build is programs.build and path.name == "program" and type(sent) is type(static)
    assert len(statics) > 4


SLEEPING = "subprocess.run([sys.executable, '-c', 'import time; time.sleep(99)'])"


def test_a_compiler_goes_on_after_failures_and_ending_it_ends_what_it_started(tmp_path, monkeypatch):
    code = f"""
    print('said by a library')
    if static.name == 'bad': raise OSError('no space left')
    if static.name == 'killed': os._exit(7)
    if static.name == 'slow': {SLEEPING}
    path.write_text('made')"""
    bad, killed, good, slow = (job(tmp_path, name) for name in ("bad", "killed", "good", "slow"))
    with worker_of(code, tmp_path, monkeypatch) as worker:
        assert str(worker.make(bad)) == "Compiling a pass of bad failed: OSError: no space left"
        assert str(worker.make(killed)) == "Compiling a pass of killed failed: said by a library"
        assert worker.make(good) is None
        assert good.path.read_text() == "made" and not bad.path.exists()

        waiting = threading.Thread(target=worker.make, args=[slow])
        waiting.start()
        process = psutil.Process(worker.process.pid)
        wait_until(lambda: process.children())
        started = [process, *process.children(recursive=True)]
        worker.end()
        waiting.join(PATIENCE)
        assert not waiting.is_alive()
        psutil.wait_procs(started, timeout=PATIENCE)
        assert [one for one in started if one.is_running() and one.status() != psutil.STATUS_ZOMBIE] == []
        assert worker.make(good) is None and worker.process.poll() is not None
    assert leftovers(tmp_path) == []


def test_halting_ends_all_programs_that_are_being_made(tmp_path, monkeypatch):
    class Slow:
        def __init__(self, call, on_gpu):
            self.ended = threading.Event()

        def __enter__(self):
            return self

        def __exit__(self, *exception):
            self.ended.set()

        def make(self, job):
            made.append(job)
            if job.role != "first":
                assert self.ended.wait(PATIENCE)

    made, halt = [], threading.Event()
    monkeypatch.setattr(compiler, "Worker", Slow)
    jobs = [job(tmp_path, name) for name in ("first", "second", "third", "fourth")]
    ended = compiler.compile_all(jobs, 2, halt)
    assert next(ended) == (jobs[0], None)
    halt.set()
    assert list(ended) == [] and jobs[3] not in made


def states(worker: compiler.Worker) -> set[str]:
    process = psutil.Process(worker.process.pid)
    return {one.status() for one in (process, *process.children(recursive=True))}


needs_groups = pytest.mark.skipif(not compiler._GROUPS, reason="needs processes that can be stopped")


@needs_groups
def test_compilers_stand_still_while_something_is_measured_and_go_on_afterwards(tmp_path, monkeypatch):
    code = f"path.write_text(str({SLEEPING.replace('99', '0.5')}))"
    with worker_of(code, tmp_path, monkeypatch) as worker:
        making = threading.Thread(target=worker.make, args=[job(tmp_path)])
        making.start()
        wait_until(lambda: len(psutil.Process(worker.process.pid).children()) == 1)
        with compiler.compilers_paused():
            wait_until(lambda: states(worker) == {psutil.STATUS_STOPPED})
            with compiler.compilers_paused(), worker_of("", tmp_path, monkeypatch) as late:
                wait_until(lambda: states(late) == {psutil.STATUS_STOPPED})
            assert states(worker) == {psutil.STATUS_STOPPED}
        making.join(PATIENCE)
        assert not making.is_alive() and job(tmp_path).path.exists()
        # Where somebody always measures, programs are made all the same.
        monkeypatch.setattr(compiler._rest, "left", 0.0)
        with compiler.compilers_paused():
            assert worker.make(job(tmp_path, "other")) is None


@needs_groups
def test_programs_of_the_models_that_came_last_are_made_first(tmp_path, monkeypatch):
    sleeping, running = {psutil.STATUS_STOPPED}, {psutil.STATUS_SLEEPING, psutil.STATUS_RUNNING}
    with worker_of("path.touch()", tmp_path, monkeypatch, 1) as first:
        with worker_of("", tmp_path, monkeypatch, 2) as last:
            wait_until(lambda: states(first) == sleeping and states(last) <= running)
            with compiler.compilers_paused():
                wait_until(lambda: states(last) == sleeping)
            wait_until(lambda: states(first) == sleeping and states(last) <= running)
        wait_until(lambda: states(first) <= running)
        assert first.make(job(tmp_path)) is None and job(tmp_path).path.exists()


@needs_groups
def test_a_compiler_that_stands_still_when_its_server_is_killed_ends_too(tmp_path):
    script = (
        "import sys, time\nfrom specviz.passes import compiler\n"
        "with compiler.compilers_paused(), compiler.Worker(0) as worker:\n"
        "    print(worker.process.pid, flush=True)\n    time.sleep(99)"
    )
    environment = os.environ | {"SPECVIZ_CACHE": str(tmp_path / "programs")}
    with subprocess.Popen([sys.executable, "-c", script], env=environment, stdout=subprocess.PIPE) as server:
        worker = psutil.Process(int(server.stdout.readline()))
        wait_until(lambda: worker.status() == psutil.STATUS_STOPPED)
        server.kill()
    wait_until(lambda: not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE)


def test_a_compiler_whose_server_was_killed_ends_too_and_leaves_nothing(tmp_path, monkeypatch):
    worker = worker_of(SLEEPING, tmp_path, monkeypatch)

    pickle.dump(pickle.dumps((programs.build, None, tmp_path / "made.pt2")), worker.process.stdin)
    worker.process.stdin.flush()
    process = psutil.Process(worker.process.pid)
    wait_until(lambda: process.children())
    (child,) = process.children()
    # What the death of this process would do.
    worker.process.stdin.close()
    assert worker.process.wait(PATIENCE) == 1
    psutil.wait_procs([child], timeout=PATIENCE)
    assert not child.is_running()
    assert leftovers(tmp_path) == []
