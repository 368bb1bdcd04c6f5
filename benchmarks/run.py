"""Every benchmark, one after the other, each writing its result under benchmarks/results/: `make bench`.

python benchmarks/run.py [NAME ...]
"""

import argparse
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
BENCHMARKS = {
    "demo": ["demo.py", "--out", "{results}/demo.json"],
    "health": ["health.py", "--out", "{results}/health.json"],
    "streaming": ["streaming.py", "--out", "{results}/streaming.json"],
    "samplers": ["samplers.py", "--out", "{results}/samplers.json"],
    "noise_needed": ["noise_needed.py", "--out", "{results}/noise-needed.json"],
    "noisy_argmax": ["noisy_argmax.py", "--out", "{results}/noisy_argmax.json"],
    "noisy_student": ["noisy_student.py", "--out", "{results}"],
    "dped": ["dped.py"],
    "forecast": ["forecast.py", "--out", "{results}/forecast.json"],
    "resuming": ["resuming.py", "--out", "{results}/resuming.json"],
    "fitting": ["fitting.py", "--out", "{results}"],
    "load": ["load.py", "--minutes", "10", "--out", "{results}/load.json"],
    "training_profile": [
        *("training_profile.py", "--size", "10000", "--steps", "12"),
        *("--out", "{results}/training-profile.json"),
    ],
    "private_training": ["private_training.py", "--out", "{results}/private_training.json"],
    "private_training_batch": [
        *("private_training.py", "--batch", "4096"),
        *("--out", "{results}/private_training-batch.json"),
    ],
    "encoding": ["encoding.py", "--out", "{results}/encoding.json"],
    "federated_step": ["federated_step.py", "--out", "{results}/federated_step.json"],
    "sst2": ["sst2.py"],
    "corpus": ["corpus.py", "--rows", "500", "--out", "{results}/corpus.json"],
    "comparing": ["comparing.py", "--out", "{results}/comparing.json"],
    "audits": ["audits.py", "--out", "{results}"],
    "clustering": ["clustering.py", "--out", "{results}/clustering.json"],
    "selecting": ["selecting.py", "--out", "{results}/selecting.json"],
    "privdistil": ["privdistil.py"],
    "domain_classifiers": ["domain_classifiers.py"],
    "hostile": ["hostile.py", "--out", "{results}/hostile.json"],
    "secure_utility": ["secure_utility.py", "--out", "{results}/secure-utility.json"],
    "secure_run": ["secure_run.py", "--out", "{results}/secure-run.json"],
    "beside_flower": ["beside_flower.py", "--out", "{results}"],
    "dialling": ["dialling.py", "--out", "{results}/dialling.json"],
    "three_sites": ["three_sites.py", "--first-answer", "--out", "{results}/first_answer.json"],
    "launching": ["launching.py", "--out", "{results}/launching.json"],
    "reading": ["reading.py", "--beside", "502a14bb", "--out", "{results}/reading.json"],
    "layered_student": ["layered_student.py", "--out", "{results}/layered_student.json"],
}


def main() -> int:
    """Run the named benchmarks, or all; returns the number of those that failed."""
    parser = argparse.ArgumentParser(description="Run Conclave's benchmarks.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(BENCHMARKS)}; all by default")
    names = parser.parse_args().names or list(BENCHMARKS)
    unknown = sorted(set(names) - set(BENCHMARKS))
    if unknown:
        parser.error(f"there is no benchmark {unknown[0]}; there is {', '.join(BENCHMARKS)}")
    RESULTS.mkdir(exist_ok=True)
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores, {platform.machine()}", flush=True)
    failed = 0
    for name in names:
        script, *arguments = (part.format(results=RESULTS) for part in BENCHMARKS[name])
        print(f"\n== {name}", flush=True)
        began = time.monotonic()
        code = subprocess.run([sys.executable, str(HERE / script), *arguments]).returncode
        print(f"== {name}: {'failed' if code else 'done'} in {time.monotonic() - began:.0f} s", flush=True)
        failed += code != 0
    return failed


if __name__ == "__main__":
    sys.exit(main())
