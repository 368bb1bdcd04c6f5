"""The secure sum beside Flower's SecAgg+, case by case, the two taking turns on the same machine.

    python benchmarks/beside_flower.py [--flower PYTHON] [--repeats N] [--out DIRECTORY]

PYTHON is the interpreter of Flower's own environment, which `flower_secagg.py` says how to make, or what
`CONCLAVE_FLOWER` names; without either nothing is measured. Ours is `run_case` of `secure_sum.py`; Flower's runs in a
process that waits while ours works. Both do one small sum before any is timed. A ratio is Flower's best time over ours:
other work on the machine only ever adds to a time. The ratio of the medians is in the JSON.
DIRECTORY receives secure-sum.json with every time, and secure-sum.md.
"""

import argparse
import importlib.util
import json
import os
import platform
import statistics
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

CASES = [(5, 1_000_000, 0), (10, 1_000_000, 0), (10, 1_000_000, 2), (32, 100_000, 0)]
SETTINGS = {"every pair": 0, "seven shares": 7}  # each in the cases of more parties than this
REPEATS = 5
ABOUT = """\
Seconds of a whole sum, all rounds and all parties one after the other in one process: the best, and in brackets the
median and the slowest of {repeats}, ours and Flower's in turn; a ratio is Flower's best over ours. Flower {flwr},
without its quantisation (secure-sum.json has both). "Every pair" gives each party a share of every key and needs two
thirds of them; "seven shares" is 7 and 4, masks shared with six others. Python {python}, {cores} cores, {machine}; on
average {load[0]:.1f} processes wanted them before and {load[1]:.1f} at the end, of which one is this measurement.

Not alike: ours makes masks and checks signatures on all cores, and Flower works on one. Flower draws its masks from a
Mersenne twister with a seed of 32 bits, in 64-bit words, signs nothing, and has no round in which the survivors agree
on who they are; it shares each key as PEM text, in Python, which is nearly all of its time with 32 parties and depends
on the threshold.
"""


def our_case(file):
    """`run_case` of a file, found by its path: other packages install a `benchmarks` of their own."""
    spec = importlib.util.spec_from_file_location("secure_sum", file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module.run_case


class Flower:
    """Flower's cases, run one at a time by another interpreter that waits in between."""

    def __init__(self, interpreter):
        command = [interpreter, HERE / "flower_secagg.py", "--with-lines"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait()

    def run_case(self, parties, length, dropped, setting):
        """Seconds of the protocol (`seconds`) and of all (`whole`), and the version (`flwr`)."""
        case = {"parties": parties, "length": length, "dropped": dropped, "setting": setting}
        try:
            self.process.stdin.write(json.dumps(case) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise SystemExit("Flower's process has ended; its message is above") from None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("Flower's process has ended; its message is above")
        return json.loads(line)


def taken(times):
    """Times of a case, in the order of measuring, with the figures of the table."""
    return {"best": min(times), "median": statistics.median(times), "slowest": max(times), "all": times}


def measure(ours, flower, parties, length, dropped, repeats):
    """A case by ours and by every setting of Flower's that fits it, in an order that turns round with each repeat."""
    names = ["ours", *(name for name, parties_above in SETTINGS.items() if parties > parties_above)]
    seconds = {name: [] for name in names}
    whole = {name: [] for name in names[1:]}
    for repeat in range(repeats):
        for name in names if repeat % 2 == 0 else reversed(names):
            if name == "ours":
                seconds[name].append(ours(parties, length, dropped))
            else:
                found = flower.run_case(parties, length, dropped, name)
                seconds[name].append(found["seconds"])
                whole[name].append(found["whole"])
    row = {"parties": parties, "length": length, "dropped": dropped, "ours": taken(seconds["ours"])}
    for name in names[1:]:
        times = taken(seconds[name])
        ratios = {of: round(times[of] / row["ours"][of], 2) for of in ("best", "median")}
        row[name] = {
            **times,
            "with quantisation": taken(whole[name]),
            "ratio": ratios["best"],
            "ratio of medians": ratios["median"],
        }
    return row


def cell(times):
    """A best time with median and slowest, or a dash for what was not measured."""
    return f"{times['best']:.3f} ({times['median']:.3f}, {times['slowest']:.3f})" if times else "-"


def table(found):
    """The figures as Markdown."""
    heads = ["case", "ours", *(head for name in SETTINGS for head in (f"Flower, {name}", "ratio"))]
    lines = [ABOUT.format(**found), f"| {' | '.join(heads)} |", "|---" + "|--:" * (len(heads) - 1) + "|"]
    for row in found["cases"]:
        lost = f", {row['dropped']} dropped" if row["dropped"] else ""
        cells = [f"{row['parties']} x {row['length']:,}{lost}", cell(row["ours"])]
        for name in SETTINGS:
            cells += [cell(row.get(name)), f"{row[name]['ratio']:.2f}" if name in row else "-"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--flower", default=os.environ.get("CONCLAVE_FLOWER"), help="the other interpreter")
    parser.add_argument("--ours", type=Path, default=HERE / "secure_sum.py", help="a file with our run_case")
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if not arguments.flower:
        print(
            "beside_flower is skipped: neither --flower nor CONCLAVE_FLOWER names a Python with Flower in it; "
            "benchmarks/flower_secagg.py says how to make one."
        )
        return 0
    load = [os.getloadavg()[0]]
    ours = our_case(arguments.ours)
    ours(8, 1000, 1)
    found = {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "repeats": arguments.repeats,
    }
    with Flower(arguments.flower) as flower:
        found["flwr"] = flower.run_case(8, 1000, 1, "every pair")["flwr"]
        found["cases"] = [measure(ours, flower, *case, arguments.repeats) for case in CASES]
    found["load"] = [*load, os.getloadavg()[0]]
    print(table(found), end="")
    if arguments.out is not None:
        (arguments.out / "secure-sum.json").write_text(json.dumps(found, indent=1) + "\n")
        (arguments.out / "secure-sum.md").write_text(table(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
