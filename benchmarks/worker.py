"""One peer's process: reads commands as lines of JSON, answers each with a line of JSON.

setup ROW -> {"leaves": FILE} (outputs of the first steps) or {"error": TEXT}
time SECONDS -> {"median": seconds per call, "samples": n}
reference ROW -> {"leaves": FILE}
drop -> {}
"""

from __future__ import annotations

import gc
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from benchmarks.peers import Library, leaves, make_peer, map_arrays
from benchmarks.row import Row
from benchmarks.rows import find_row

MAX_COMPARED = 1 << 20  # of an output's elements, evenly spaced


def make_step(peer: Library, row: Row) -> Callable[[], Any]:
    program = row.programs[peer.family]
    arrays = peer.arrays(row.inputs())
    if row.stateful:
        return program(peer, *arrays)
    if peer.family == "numpy":
        return partial(program, *arrays)
    return partial(peer.jit(partial(program, peer.module)), *arrays)


def save(outputs: list[np.ndarray]) -> str:
    handle, path = tempfile.mkstemp(suffix=".npz")
    os.close(handle)
    thinned = []
    for output in outputs:
        flat = np.asarray(output).reshape(-1)
        thinned.append(flat[:: max(1, flat.size // MAX_COMPARED)].astype(np.float64))
    np.savez(path, *thinned)
    return path


def first_outputs(peer: Library, row: Row, step: Callable[[], Any]) -> list[np.ndarray]:
    outputs = []
    for _ in range(row.checked_steps):
        out = step()
        peer.wait(out)
        outputs += [peer.to_numpy(leaf).copy() for leaf in leaves(out)]
    return outputs


def time_step(peer: Library, row: Row, step: Callable[[], Any], budget: float) -> dict[str, Any]:
    samples: list[float] = []
    end = time.perf_counter() + budget
    while not samples or time.perf_counter() < end:
        start = time.perf_counter()
        for _ in range(row.calls):
            out = step()
        peer.wait(out)
        samples.append((time.perf_counter() - start) / row.calls / row.per_call)
    return {"median": statistics.median(samples), "samples": len(samples)}


def reference(row: Row) -> list[np.ndarray]:
    assert row.reference is not None
    widen = lambda x: x.astype(np.float64) if x.dtype.kind not in "biu" else x
    out = row.reference(*[map_arrays(widen, x) for x in row.inputs()])
    return [np.asarray(leaf) for leaf in leaves(out)]


def answer(peer: Library, state: dict[str, Any], command: list[Any]) -> dict[str, Any]:
    match command:
        case ["setup", name]:
            row = find_row(name)
            assert isinstance(row, Row)
            state.update(row=row, step=make_step(peer, row))
            outputs = first_outputs(peer, row, state["step"])
            if row.check is not None:
                return {"error_size": row.check(outputs)}
            path = save(outputs)
            del outputs
            for _ in range(2):  # tinygrad's jit captures at its second call
                peer.wait(state["step"]())
            return {"leaves": path}
        case ["time", budget]:
            return time_step(peer, state["row"], state["step"], budget)
        case ["reference", name]:
            return {"leaves": save(reference(find_row(name)))}
        case ["drop"]:
            state.clear()
            gc.collect()
            return {}
    raise ValueError(f"unknown command {command}")


def main() -> None:
    # What libraries print must not mix with the answers.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    state: dict[str, Any] = {}
    peer = None
    for line in sys.stdin:
        try:
            peer = peer or make_peer(sys.argv[1])
            reply = answer(peer, state, json.loads(line))
        except Exception as error:  # reported beside the row; the others go on
            state.clear()
            reply = {"error": f"{type(error).__name__}: {str(error).splitlines()[:1]}"}
        print(json.dumps(reply), file=answers)


if __name__ == "__main__":
    main()
