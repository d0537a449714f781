"""Where the time of a device goes, kernel by kernel, from CubeCL's profiling log.

    python3 benchmarks/kernel_times.py kernels.log --steps 2 --step-ms 81.5

The log is written by any program on CubeCL whose working folder has a `cubecl.toml` with

    [profiling]
    logger = { level = "full", file = "kernels.log" }

Each launch is a record there. Whenever the program waits for the device a table closes what came before; `bridge bench` waits
before and behind each step, so `--steps N` takes the last N tables, and what is printed is a step's mean. Without tables, or
with `--all`, everything counts. Kernels that are measured are waited for one by one, so the sum is less than a step that is
measured takes. Products of cuBLASLt are no launches of CubeCL and are not in the log: with `--step-ms`, the time of a step
without profiling, what the sum leaves of it is shown too.
"""

import argparse
import json
import re
import sys
from collections import defaultdict

# `| 17.4ms    | path::Kernel<path::Type>: KernelInfo {`: with level "full" lines of settings follow, and the last one has the grid.
RECORD = re.compile(r"^\| (?:([0-9.]+)(ns|µs|us|ms|s)|not measured) *\| (.*)$")
GRID = re.compile(r"CubeCount\s*(.*)$")
TABLE = "|⎺"
SECONDS = {"ns": 1e-9, "µs": 1e-6, "us": 1e-6, "ms": 1e-3, "s": 1.0}


def short(name):
    """`Kernel<Type>` of `a::b::Kernel<c::Type>`."""
    return re.sub(r"(?:\w+::)+(?=\w)", "", name)


def windows(lines):
    """Launches as (name, grid, seconds), in lists that tables close; seconds are None where a launch was not measured."""
    closed, launches = [], []
    for line in lines:
        line = line.rstrip("\n")
        record = RECORD.match(line)
        if record:
            number, unit, text = record.groups()
            seconds = float(number) * SECONDS[unit] if number else None
            grid = GRID.search(text)
            launches.append([text.split(": ", 1)[0].strip(), grid[1] if grid else "", seconds])
        elif line.startswith(TABLE):
            if launches:
                closed.append(launches)
            launches = []
        elif launches and not launches[-1][1] and (grid := GRID.search(line)):
            launches[-1][1] = grid[1]
    return closed, launches


def rows(launches, steps, by_grid):
    """Kernels with launches and milliseconds a step, the longest first."""
    found = defaultdict(lambda: [0, 0.0])
    for name, grid, seconds in launches:
        entry = found[short(name), grid if by_grid else ""]
        entry[0] += 1
        entry[1] += 1e3 * (seconds or 0.0)
    total = sum(ms for _, ms in found.values()) or 1.0
    table = [
        {"kernel": name, "grid": grid, "launches": count / steps, "ms": ms / steps, "mean_us": 1e3 * ms / count, "share": ms / total}
        for (name, grid), (count, ms) in found.items()
    ]
    return sorted(table, key=lambda row: -row["ms"])


def report(lines, steps=1, everything=False, by_grid=False):
    """The rows of the last steps of a log, how many there were, and how many launches were not measured."""
    closed, rest = windows(lines)
    if everything or not closed:
        launches, count = [launch for window in [*closed, rest] for launch in window], 1
    else:
        taken = closed[-steps:]
        launches, count = [launch for window in taken for launch in window], len(taken)
    return rows(launches, count, by_grid), count, sum(seconds is None for *_, seconds in launches)


def text(table, steps, unmeasured, top, step_ms=None):
    """The rows as a table, the rest of them in one."""
    lines = [f"a step, mean of {steps}", f"{'share':>6}  {'ms':>9}  {'launches':>8}  {'mean µs':>9}  kernel"]
    line = lambda share, ms, launches, mean, name: f"{share:6.1%}  {ms:9.3f}  {launches:8.1f}  {mean:9.1f}  {name}"
    for row in table[:top]:
        lines.append(line(row["share"], row["ms"], row["launches"], row["mean_us"], f"{row['kernel'][:90]} {row['grid']}".strip()))
    sums = lambda rows: (sum(row["ms"] for row in rows), sum(row["launches"] for row in rows))
    (rest, rest_launches), (total, launches) = sums(table[top:]), sums(table)
    if rest_launches:
        lines.append(line(rest / (total or 1.0), rest, rest_launches, 1e3 * rest / rest_launches, f"({len(table) - top} more)"))
    if launches:
        lines.append(line(1.0, total, launches, 1e3 * total / launches, "all in the log"))
    if step_ms is not None:
        lines.append(f"{'':>6}  {step_ms - total:9.3f}  {'':>8}  {'':>9}  not in the log: products of cuBLASLt, copies, waiting (of {step_ms:.3f} ms)")
    if unmeasured:
        lines.append(f"{unmeasured} launches were not measured, and count as no time")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("log")
    parser.add_argument("--steps", type=int, default=1, help="the last steps that are taken")
    parser.add_argument("--all", action="store_true", help="the whole log, as one step")
    parser.add_argument("--by-grid", action="store_true", help="a row for each grid of a kernel")
    parser.add_argument("--top", type=int, default=40)
    parser.add_argument("--step-ms", type=float, help="time of a step without profiling")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with open(options.log, encoding="utf-8", errors="replace") as file:
        table, steps, unmeasured = report(file, options.steps, options.all, options.by_grid)
    if not table:
        sys.exit(f"{options.log}: no launch of a kernel in it")
    print(json.dumps({"steps": steps, "rows": table}) if options.json else text(table, steps, unmeasured, options.top, options.step_ms))


if __name__ == "__main__":
    main()
