"""How long `import headway` takes beyond `import torch`: fresh interpreters, interleaved, medians. Seconds.

python benchmarks/import_time.py [runs]
"""

from __future__ import annotations

import statistics
import subprocess
import sys

CODE = """
import time, torch
start = time.perf_counter()
import {module}
print(time.perf_counter() - start)
"""
MODULES = ("headway", "headway.attention")


def seconds(module: str) -> float:
    done = subprocess.run([sys.executable, "-c", CODE.format(module=module)], capture_output=True, text=True, check=True)
    return float(done.stdout)


def main(runs: int = 5) -> None:
    seconds(MODULES[0])  # writes the compiled files
    taken = [{m: seconds(m) for m in MODULES} for _ in range(runs)]
    for m in MODULES:
        times = [t[m] for t in taken]
        print(f"import {m} after import torch: {statistics.median(times):.3f} s (median of {runs}, worst {max(times):.3f})")


if __name__ == "__main__":
    main(*(int(n) for n in sys.argv[1:2]))
