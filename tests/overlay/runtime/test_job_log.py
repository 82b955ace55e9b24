"""Who says what the job is run with and what is in place, and when: by processes that are made up."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_upstream import Upstream, forget, tables

from overlay import log
from overlay.model import settings
from overlay.runtime import driver, job_log
from overlay.runtime.engine import Engine
from overlay.runtime.job_log import DRIVER, JobLog, introduction

INTRODUCED = "overlay: configuration: what it is run with"
ALONE = "this process: 1 applied"
NOT_COMPARED = "overlay: ranks not compared; rank 0: 1 applied"


class Account:
    def sentence(self) -> str:
        return "1 applied"


class Job:
    """A process with an environment that can be set, and what it says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.set, self.unset = monkeypatch.setenv, monkeypatch.delenv
        self._capsys, self._patch = capsys, monkeypatch
        for name in (settings.SAID, settings.LOADED, "RANK", "LOCAL_RANK", "SLURM_PROCID", "WORLD_SIZE"):
            monkeypatch.setenv(name, "")
            monkeypatch.delenv(name)
        log.set_level("info")

    def process(self) -> JobLog:
        return JobLog(lambda: INTRODUCED.removeprefix("overlay: "), Account)  # type: ignore[arg-type]

    def child(self) -> JobLog:
        """Return the log of a process that `multiprocessing` has started."""
        self._patch.setattr("multiprocessing.process._parent_process", object())
        return self.process()

    def said(self) -> list[str]:
        return self._capsys.readouterr().err.splitlines()


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Job]:
    monkeypatch.setattr("atexit.register", lambda _: None)
    yield Job(monkeypatch, capsys)
    log.set_level("info")


def test_the_introduction_fits_a_line_and_names_upstreams_first() -> None:
    lock: dict[str, Any] = {
        "overlay": {"version": "0.1.0"}, "python": "3.11.7", "digest": "0123456789abcdef", "environment": {},
        "patch": [{"target": [{"project": "up", "version": "1.2"}, {"project": "gone", "version": ""}]}],
    }  # fmt: skip
    assert introduction(lock, 1, strict=False, pinned=False) == (
        "configuration: overlay 0.1.0, Python 3.11.7, up 1.2; 1 patch selected, digest 0123456789ab"
    )
    lock["environment"] = {f"package-{number}": "1.2.3+local" for number in range(12)}
    line = f"overlay: {introduction(lock, 54, strict=True, pinned=True)}"
    assert len(line) <= 160
    assert "up 1.2, package-0" in line
    assert line.endswith(", ...; 54 patches selected, strict, pinned, digest 0123456789ab")


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({}, [INTRODUCED, f"overlay: {ALONE}"]),
        ({"RANK": "0", "WORLD_SIZE": "1"}, [INTRODUCED, "overlay: rank 0: 1 applied"]),
        ({"RANK": "0", "WORLD_SIZE": "2"}, [INTRODUCED, NOT_COMPARED]),
        ({"RANK": "1", "WORLD_SIZE": "2"}, []),
        ({settings.SAID: DRIVER}, [f"overlay: {ALONE}"]),
        ({settings.SAID: "process"}, [INTRODUCED, f"overlay: {ALONE}"]),
        ({settings.SAID: "process", "RANK": "0"}, [INTRODUCED, NOT_COMPARED]),
    ],
    ids=["no rank", "the only rank", "rank 0", "rank 1", "a worker of a driver", "a job", "its rank 0"],
)
def test_who_says_what(job: Job, environ: dict[str, str], said: list[str]) -> None:
    for name, text in environ.items():
        job.set(name, text)
    one = job.process()
    one.first_module()
    one.say_alone()
    one.say_alone()
    assert job.said() == said
    # What is a part of it says nothing again.
    child = job.child()
    child.first_module()
    child.say_alone()
    assert job.said() == []


@pytest.mark.parametrize(
    ("environ", "warned"),
    [
        ({}, True),
        ({"RANK": "0"}, True),
        ({"RANK": "1"}, False),
        ({settings.SAID: DRIVER}, False),
        ({settings.SAID: "process", settings.LOADED: "overlay -"}, False),
        ({"program": "train.py"}, False),
    ],
    ids=["no rank", "rank 0", "rank 1", "told by its driver", "given its environment", "no worker"],
)
def test_a_patched_worker_says_that_its_driver_is_not(
    job: Job, monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], warned: bool
) -> None:
    """As with `OVERLAY` in the `env_vars` that verl gives its workers, and nowhere else."""
    for name, text in environ.items():
        job.set(name, text)
    program = environ.get("program", "/ray/default_worker.py")
    monkeypatch.setattr(sys, "orig_argv", ["python", program])
    one = job.process()
    one.first_module()
    assert (driver.UNPATCHED in " ".join(job.said())) is warned
    one.note_fork()
    log.set_level("info")
    one.first_module()
    assert driver.UNPATCHED not in " ".join(job.said())


def test_a_worker_with_other_code_than_its_driver_says_so_once(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node may have been left out of an upgrade, of overlay or of a pack."""
    monkeypatch.setattr(sys, "orig_argv", ["python", "/ray/default_worker.py"])
    here = {"overlay": "a" * 64, "pack acme": "b" * 64, "pack of its own": "c" * 64}
    monkeypatch.setattr(driver, "code_in_use", here.copy)
    for rank, told, differs in (
        ("0", driver.loaded(), False),
        ("1", driver.loaded(), False),
        ("1", "", False),
        ("1", "of something else; ", False),
        ("1", f"overlay {'a' * 12}; pack acme {'d' * 12}; pack of the driver {'e' * 12}", True),
    ):
        job.set("RANK", rank)
        job.set(settings.LOADED, told)
        one = job.process()
        one.first_module()
        one.compare_with_driver()
        said = [line for line in job.said() if "Ray:" in line]
        what = f"pack acme (here {'b' * 12}, there {'d' * 12})."
        begin = (
            f"overlay: Ray: this worker runs different code from the driver of its job: {what} What to do: "
        )
        assert [line[: len(begin)] for line in said] == [begin] * differs


def test_a_rank_that_multiprocessing_starts_speaks_for_itself(job: Job) -> None:
    job.process().say_configuration()
    assert job.said() == [INTRODUCED]
    job.set("RANK", "0")
    child = job.child()
    child.first_module()
    child.say_alone()
    assert job.said() == [NOT_COMPARED]


def forked(work: Callable[[], object]) -> None:
    """Do some work in a fork, and wait for it."""
    child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os._exit(0)
    os.waitpid(child, 0)


@pytest.mark.parametrize("before", [True, False], ids=["the parent", "a fork"])
def test_forks_say_it_once(job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: bool) -> None:
    """A fork that is no rank leaves it to the process that it comes from."""
    one = job.process()

    def works() -> None:
        one.first_module()
        one.say_alone()

    def in_fork() -> None:
        one.note_fork()
        works()

    with (tmp_path / "log.txt").open("a") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        if before:
            one.first_module()
        for _ in range(2):
            forked(in_fork)
        works()
    said = (tmp_path / "log.txt").read_text().splitlines()
    assert sorted(said) == sorted([INTRODUCED, f"overlay: {ALONE}"])


def test_no_thread_waits_where_a_fork_would_be_warned_of_it(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From Python 3.12 on, `os.fork()` warns in a process that has more threads than one."""
    started: list[object] = []
    monkeypatch.setattr("_thread.start_new_thread", lambda *call: started.append(call))
    for alone, expected in ((True, 0), (False, 1)):
        monkeypatch.setattr(job_log, "_is_single_threaded", lambda alone=alone: alone)
        job.process().watch()
        assert len(started) == expected


def test_ranks_that_agree_are_one_line_and_nothing_is_said_alone(job: Job) -> None:
    one = job.process()
    one.first_module()
    one.say_agreed("2 ranks agree: 1 applied")
    one.say_agreed("2 ranks agree: 1 applied")
    one.say_alone()
    assert job.said() == [INTRODUCED, "overlay: 2 ranks agree: 1 applied"]
    one.say_agreed("2 ranks agree: 2 applied")
    assert job.said() == ["overlay: 2 ranks agree: 2 applied"]


def test_what_the_job_is_run_with_is_said_again_if_it_has_changed(job: Job) -> None:
    # The script may put another upstream first on the path, once the first module is there.
    versions = ["1", "1", "2"]
    one = JobLog(lambda: f"with {versions.pop(0)}", Account)  # type: ignore[arg-type]
    one.first_module()
    one.say_agreed("2 ranks agree: 1 applied")
    one.say_agreed("2 ranks agree: 1 refused")
    agree = [f"overlay: 2 ranks agree: 1 {word}" for word in ("applied", "refused")]
    assert job.said() == ["overlay: with 1", agree[0], "overlay: with 2", agree[1]]


def test_a_closed_stream_stops_nothing(job: Job, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(logging.getLogger("overlay"), "handlers", [])
    with monkeypatch.context() as patch:
        with (tmp_path / "log.txt").open("w") as stream:
            patch.setattr(sys, "stderr", stream)
        job.process().first_module()


def test_what_comes_after_that_is_news(job: Job) -> None:
    one = job.process()
    log.own("applied a")
    one.say_agreed("2 ranks agree: 1 applied")
    log.own("applied b")
    assert job.said() == ["overlay: 2 ranks agree: 1 applied", "overlay: applied b"]
    job.set("RANK", "1")
    log.own("applied c")
    assert job.said() == []


def test_ranks_that_differ_are_not_said_to_agree(job: Job) -> None:
    job.set("RANK", "0")
    one = job.process()
    one.first_module()
    one.note_disagreement()
    one.say_alone()
    assert job.said()[1:] == ["overlay: the comparison of the ranks failed; rank 0: 1 applied"]


def test_one_that_is_told_its_rank_later_leaves_it_to_rank_0(job: Job) -> None:
    one = job.process()
    one.first_module()
    job.said()
    job.set("RANK", "3")
    one.say_alone()
    assert job.said() == []


class WaitedError(Exception):
    """In place of a wait."""


@pytest.fixture
def watches(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], object]]:
    """Return the functions of threads that were started: each looks once when it is called."""
    found: list[Callable[[], object]] = []
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) % 2 == 0:
            raise WaitedError

    monkeypatch.setattr(job_log, "_is_single_threaded", lambda: False)
    monkeypatch.setattr("_thread.start_new_thread", lambda function, arguments: found.append(function))
    monkeypatch.setattr("time.sleep", sleep)
    return found


def test_it_is_said_after_a_while(job: Job, watches: list[Callable[[], object]]) -> None:
    one = job.process()
    one.first_module()
    for _ in range(2):
        one.watch()
    assert job.said() == [INTRODUCED]
    (watch,) = watches
    for said in ([f"overlay: {ALONE}"], []):
        with pytest.raises(WaitedError):
            watch()
        assert job.said() == said


@pytest.mark.parametrize("rank", ["0", "1"])
def test_what_is_replaced_after_ranks_agreed_is_told_before_the_end(
    upstream: Upstream, job: Job, watches: list[Callable[[], object]], rank: str
) -> None:
    """An actor of Ray is killed, and never gets to its end."""
    job.set("RANK", rank)
    patch = upstream.patch()
    engine = Engine(lambda: {patch.id: patch}, table=tables())
    engine.enable(strict=True)
    module = upstream.load()
    engine.job_log.first_module()
    engine.job_log.watch()
    if rank == "0":
        engine.job_log.say_agreed("2 ranks agree: 1 applied")
    else:
        engine.job_log.clear()
    job.said()
    (watch,) = watches
    for replaced in (False, True):
        if replaced:
            vars(module)["scale"] = lambda value, factor=2: value
        with pytest.raises(WaitedError):
            watch()
        assert ("lost fakeup.scale: " in " ".join(job.said())) is replaced
    engine.disable()


@pytest.mark.parametrize("level", ["warning", "off"])
def test_a_quiet_log_is_quiet(job: Job, level: str) -> None:
    log.set_level(level)
    one = job.process()
    one.first_module()
    one.say_alone()
    assert job.said() == []
    assert settings.SAID not in os.environ


def test_no_import_fails_of_it(job: Job) -> None:
    def broken() -> str:
        raise ValueError("no")

    one = JobLog(broken, Account)  # type: ignore[arg-type]
    one.first_module()
    assert job.said() == ["overlay: the configuration of this job cannot be logged: ValueError: no"]


def test_what_an_application_makes_records_with_fails_no_import(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that asks `torch.distributed` for a rank that the process doesn't have yet."""
    monkeypatch.setattr(logging, "_logRecordFactory", lambda *_, **__: 1 / 0)
    log.warning("NOT applied a")
    (said,) = job.said()
    assert said.startswith("overlay: NOT applied a (the application's logging failed: ZeroDivisionError(")


def test_a_warning_comes_from_every_rank_once_in_a_session(job: Job) -> None:
    job.set("RANK", "1")
    log.warning("NOT applied a")
    log.warning("NOT applied a")
    log.warning("NOT applied b")
    first, second = job.said()
    assert first.startswith("overlay: NOT applied a [rank=1,host=")
    assert second.startswith("overlay: NOT applied b [rank=1,host=")
    log.set_level("info")
    log.warning("NOT applied a")
    assert len(job.said()) == 1


def test_the_account_counts_what_is_in_place_and_what_was_refused(upstream: Upstream, job: Job) -> None:
    patch = upstream.patch()
    engine = Engine(lambda: {patch.id: patch}, table=tables())
    assert engine.account() is None
    engine.enable()
    upstream.load()
    account = engine.account()
    assert account is not None
    digest = engine.lock()["digest"]
    assert account.digest == digest
    assert engine.configuration().endswith(f"; 1 patch selected, digest {digest[:12]}")
    assert account == engine.statement().account
    assert account.sentence() == f"1 applied, 0 refused, digest {digest[:12]}"
    more = account.replace(applied=("a", "b", "c"), refused=("d",), half_patched=2)
    assert more.sentence() == f"3 applied, 1 refused (d), 2 half-patched, digest {digest[:12]}"
    assert more.sentence(["b"]) == (
        f"1 applied on all, 2 on some (a, c), 1 refused (d), 2 half-patched, digest {digest[:12]}"
    )
    engine.disable()
    forget()
    upstream.write(core="def scale(value, factor=2):\n    return value + factor\n")
    engine.enable()
    upstream.load()
    account = engine.account()
    assert account is not None
    assert account.sentence().startswith("0 applied, 1 refused (fakeup.scale), digest ")
    engine.disable()
