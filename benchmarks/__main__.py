"""`python -m benchmarks`: the table of tinyjax beside its peers."""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import sys
from importlib.util import find_spec
from pathlib import Path

from benchmarks.measure import Bench, Figure, Results
from benchmarks.peers import PEERS
from benchmarks.row import ProcessRow, Row
from benchmarks.rows import FAMILIES, select

OURS = "tinyjax"
# Compiling takes torch minutes over all rows and needs a C++ compiler: only when asked for.
DEFAULT_PEERS = [peer for peer in PEERS if peer != "torch-compiled"]


def is_installed(peer: str) -> bool:
    return find_spec(peer.partition("-")[0]) is not None


def with_unit(value: float, unit: str) -> str:
    """Three significant digits."""
    if math.isnan(value):
        return "-"
    if unit == "MB":
        return f"{value:.0f} MB"
    for scale, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns")):
        if value >= scale or name == "ns":
            scaled = value / scale
            return f"{scaled:.{max(0, 2 - int(math.log10(max(scaled, 1))))}f} {name}"
    raise AssertionError


def cell(figure: Figure | None, unit: str) -> str:
    if figure is None:
        return "-"
    if figure.failure:
        return "wrong" if figure.failure.startswith("wrong") else "fails"
    return with_unit(figure.median, unit)


def ratios(results: Results) -> tuple[float, float]:
    """Our median over JAX's, and over the fastest peer's."""
    medians = {peer: figure.median for peer, figure in results.items()}
    ours = medians.pop(OURS, math.nan)
    others = [value for value in medians.values() if not math.isnan(value)]
    fastest = min(others) if others else math.nan
    return ours / medians.get("jax", math.nan), ours / fastest


def ratio_cell(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.2f}x"


def table_line(name: str, figures: dict[str, str], rest: list[str]) -> str:
    """`figures` by peer, as wide as the peer's name at least."""
    cells = [name.ljust(42)]
    cells += [text.ljust(max(10, len(peer))) for peer, text in figures.items()]
    return "  ".join([*cells, *(text.ljust(10) for text in rest[:-1]), rest[-1]])


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Medians of interleaved rounds; each peer in its own process; outputs are"
        " checked against float64. Only ratios within one run mean something.",
    )
    parser.add_argument("--rows", default="", help="families or parts of names: matmul,gpt")
    parser.add_argument("--peers", default=",".join(DEFAULT_PEERS), help=", ".join(PEERS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write every round here")
    parser.add_argument("--list", action="store_true", help="list the rows and stop")
    options = parser.parse_args()

    if options.list:
        for family, family_rows in FAMILIES.items():
            print(family, *(f"    {row.name}" for row in family_rows), sep="\n")
        return
    rows = select([word for word in options.rows.split(",") if word])
    wanted = [peer for peer in options.peers.split(",") if peer]
    if unknown := set(wanted) - set(PEERS):
        parser.error(f"unknown peers: {', '.join(sorted(unknown))}")
    if not rows:
        parser.error(f"no row matches {options.rows}; --list shows them")
    peers = [peer for peer in PEERS if peer in wanted and is_installed(peer)]
    absent = [peer for peer in wanted if peer not in peers]

    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores,", end=" ")
    print(f"Python {platform.python_version()}, load average {load()}, {options.rounds} rounds")
    if absent:
        print("not installed:", ", ".join(absent))
    print(
        table_line("", {peer: peer for peer in peers}, ["/ JAX", "/ fastest", "target"]), flush=True
    )
    all_results = run(rows, peers, options.rounds)
    summarise(all_results)
    print(f"load average at the end {load()}")
    if options.json is not None:
        rounds = {
            row.name: {peer: vars(figure) for peer, figure in results.items()}
            for row, results in all_results
        }
        options.json.write_text(json.dumps(rounds, indent=1))


def load() -> str:
    return f"{os.getloadavg()[0]:.1f}"


def run(rows: list[Row | ProcessRow], peers: list[str], rounds: int):
    report = lambda text: print(f"\r{text:<79}"[:80], end="", file=sys.stderr, flush=True)
    if not sys.stderr.isatty():
        report = lambda text: None
    bench = Bench(peers, rounds, report)
    all_results = []
    try:
        for row in rows:
            results = bench.measure(row)
            all_results.append((row, results))
            unit = row.unit if isinstance(row, ProcessRow) else "s"
            figures = {peer: cell(results.get(peer), unit) for peer in peers}
            report("")
            report("\r")
            compared = [ratio_cell(ratio) for ratio in ratios(results)]
            print(table_line(row.name, figures, [*compared, row.target]), flush=True)
    finally:
        bench.close()
    return all_results


def summarise(all_results: list[tuple[Row | ProcessRow, Results]]) -> None:
    for title, which in (("JAX", 0), ("the fastest peer", 1)):
        found = [ratios(results)[which] for _, results in all_results]
        found = [ratio for ratio in found if not math.isnan(ratio)]
        if found:
            mean = statistics.geometric_mean(found)
            print(f"geometric mean over {title}: {mean:.2f}x in {len(found)} rows,", end=" ")
            print(f"largest {max(found):.2f}x")
    for row, results in all_results:
        for peer, figure in results.items():
            if figure.failure:
                print(f"{row.name}: {peer}: {figure.failure}")


if __name__ == "__main__":
    main()
