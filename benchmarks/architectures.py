"""Prints the table of transformers architectures that docs/transformers.md keeps; exits non-zero on a silent difference.

python -m benchmarks.architectures            the table
python -m benchmarks.architectures --write    the same, into docs/transformers.md
"""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from pathlib import Path

DOC = Path(__file__).parent.parent / "docs" / "transformers.md"
BEGIN, END = "<!-- architectures: made by benchmarks/architectures.py -->", "<!-- end of architectures -->"


def main() -> int:
    import transformers

    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity(transformers.logging.CRITICAL)
    from tests.integrations.architectures import ARCHITECTURES
    from tests.integrations.sweep import DIFFERS, examine

    outcomes = [examine(a) for a in ARCHITECTURES]
    counts = Counter(o.status for o in outcomes)
    lines = [
        f"transformers {transformers.__version__}: " + ", ".join(f"{n} {status}" for status, n in counts.most_common()),
        "",
    ]
    lines += ["| architecture | kind | attention | result | largest relative difference | note |", "|---|---|---|---|---|---|"]
    for o in outcomes:
        a = o.architecture
        difference = f"{o.error:.0e}" if o.error else ""
        lines.append(f"| {a.name} | {a.kind} | {a.trait} | {o.status} | {difference} | {o.note} |")
    table = "\n".join(lines)
    print(table)
    if "--write" in sys.argv:
        text = DOC.read_text()
        before, after = text.split(BEGIN)[0], text.split(END)[1]
        DOC.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}")
    return 1 if counts[DIFFERS] else 0


if __name__ == "__main__":
    sys.exit(main())
