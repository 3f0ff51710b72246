"""Runs rows: a process per peer, rounds in turn, medians, outputs checked against float64."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers import REFERENCE, family_of
from benchmarks.row import ProcessRow, Row

ROOT = Path(__file__).parent.parent

# A round of a peer is at least one call; more only while this lasts. Long enough for hundreds of
# short calls, short enough that other load on the machine meets all peers alike.
ROUND_SECONDS = 0.3
# A peer that has used this much time on a row has no further rounds.
ROW_SECONDS = 15.0


@dataclass
class Figure:
    """A peer's result in a row: a median, or the reason why there is none."""

    rounds: list[float] = field(default_factory=list)
    error: float = 0.0  # against float64, of the largest magnitude
    failure: str = ""

    @property
    def median(self) -> float:
        return statistics.median(self.rounds) if self.rounds and not self.failure else float("nan")


Results = dict[str, Figure]


def environment(**more: str) -> dict[str, str]:
    """That of this process, without the settings that slow NumPy's BLAS down."""
    # The peers were byte-compiled when they were installed; let our own modules be, too.
    slowing = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE", "PYTHONDONTWRITEBYTECODE")
    kept = {name: value for name, value in os.environ.items() if name not in slowing}
    return {**kept, "PYTHONPATH": str(ROOT), **more}


def cache_environment(folder: str) -> dict[str, str]:
    """All that the peers cache on disk goes to `folder`."""
    return environment(
        XDG_CACHE_HOME=folder,
        TINYJAX_CACHE_DIR=f"{folder}/tinyjax",
        TORCHINDUCTOR_CACHE_DIR=f"{folder}/inductor",
        CACHEDB=f"{folder}/tinygrad.db",
    )


class Worker:
    """The process of one peer; started at the first command."""

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self.process: subprocess.Popen[str] | None = None

    def __call__(self, *command: Any) -> dict[str, Any]:
        if self.process is None:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.worker", self.peer],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env=environment(),
            )
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps(command) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            self.process.communicate()
            status, self.process = self.process.returncode, None
            return {"error": f"the process ended with status {status}"}
        return json.loads(line)

    def stop(self) -> None:
        if self.process is not None:
            self.process.communicate()  # closes its standard input, which ends it
            self.process = None


def take_leaves(path: str) -> list[np.ndarray]:
    with np.load(path) as file:
        leaves = [file[name] for name in file.files]
    os.unlink(path)
    return leaves


def largest_error(got: list[np.ndarray], want: list[np.ndarray]) -> float:
    if [a.shape for a in got] != [a.shape for a in want]:
        return float("inf")
    errors = [0.0]
    for a, b in zip(got, want, strict=True):
        scale = np.max(np.abs(b), initial=0.0) or 1.0
        with np.errstate(invalid="ignore"):
            errors.append(float(np.max(np.abs(a - b), initial=0.0) / scale))
    return max(errors, key=lambda error: float("inf") if np.isnan(error) else error)


class Bench:
    """Measures rows with the given peers; `report` is told what is being done."""

    def __init__(self, peers: list[str], rounds: int, report: Callable[[str], None]) -> None:
        self.peers = peers
        self.rounds = rounds
        self.report = report
        self.workers = {peer: Worker(peer) for peer in (*peers, "numpy", REFERENCE)}

    def measure(self, row: Row | ProcessRow) -> Results:
        return self.in_processes(row) if isinstance(row, ProcessRow) else self.in_turns(row)

    def close(self) -> None:
        for worker in self.workers.values():
            worker.stop()

    # ---- rows within the peers' processes --------------------------------------------------------

    def in_turns(self, row: Row) -> Results:
        results = {peer: Figure() for peer in self.peers if family_of(peer) in row.programs}
        want = None if row.check is not None else self.expected(row)
        for peer, figure in results.items():
            self.report(f"{row.name}: {peer}, set-up")
            answer = self.workers[peer]("setup", row.name)
            figure.failure = answer.get("error", "")
            if not figure.failure:
                self.check(row, figure, answer, want)
        for turn in range(self.rounds):
            for peer in rotated([p for p in results if not results[p].failure], turn):
                figure = results[peer]
                spent = sum(figure.rounds) * row.calls * row.per_call
                if spent < ROW_SECONDS:
                    self.report(f"{row.name}: {peer}, round {turn + 1} of {self.rounds}")
                    answer = self.workers[peer]("time", ROUND_SECONDS)
                    figure.failure = answer.get("error", "")
                    if not figure.failure:
                        figure.rounds.append(answer["median"])
        for peer in results:
            self.workers[peer]("drop")
        return results

    def expected(self, row: Row) -> list[np.ndarray] | None:
        self.report(f"{row.name}: float64 reference")
        if row.reference is not None:
            answer = self.workers["numpy"]("reference", row.name)
        else:
            answer = self.workers[REFERENCE]("setup", row.name)
            self.workers[REFERENCE]("drop")
        if "error" in answer:
            self.report(f"{row.name}: no reference ({answer['error']}), outputs unchecked\n")
            return None
        return take_leaves(answer["leaves"])

    def check(self, row: Row, figure: Figure, answer: dict[str, Any], want: Any) -> None:
        if row.check is not None:
            figure.error = answer["error_size"]
        else:
            got = take_leaves(answer["leaves"])
            figure.error = 0.0 if want is None else largest_error(got, want)
        if not figure.error <= row.tolerance:
            figure.failure = f"wrong: error {figure.error:.1e}, allowed {row.tolerance:.0e}"

    # ---- rows that are processes -----------------------------------------------------------------

    def in_processes(self, row: ProcessRow) -> Results:
        scripts = {
            peer: row.scripts.get(peer) or row.scripts.get(family_of(peer)) for peer in self.peers
        }
        results = {peer: Figure() for peer, script in scripts.items() if script is not None}
        with tempfile.TemporaryDirectory() as warm_folder:
            if row.warm:
                for peer in results:
                    self.run_script(row, peer, str(scripts[peer]), warm_folder, Figure())
            for turn in range(self.rounds):
                for peer in rotated([p for p in results if not results[p].failure], turn):
                    if sum(results[peer].rounds) > ROW_SECONDS and row.unit == "s":
                        continue
                    self.report(f"{row.name}: {peer}, run {turn + 1} of {self.rounds}")
                    with tempfile.TemporaryDirectory() as cold_folder:
                        folder = warm_folder if row.warm else cold_folder
                        self.run_script(row, peer, str(scripts[peer]), folder, results[peer])
        return results

    def run_script(
        self, row: ProcessRow, peer: str, script: str, folder: str, figure: Figure
    ) -> None:
        for name, value in (
            ("{jax}", "tinyjax" if peer == "tinyjax" else "jax"),
            ("{family}", family_of(peer)),
            ("{peer}", peer),
        ):
            script = script.replace(name, value)
        start = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-c", script],
            env=cache_environment(folder),
            cwd=ROOT,
            capture_output=True,
            text=True,
        )
        seconds = time.perf_counter() - start
        if done.returncode:
            figure.failure = (done.stderr.strip().splitlines() or ["failed"])[-1]
        else:
            figure.rounds.append(seconds if row.wall else float(done.stdout.split()[-1]))


def rotated(items: list[str], by: int) -> list[str]:
    """So that each peer is the first of a round about equally often."""
    return items[by % len(items) :] + items[: by % len(items)] if items else []
