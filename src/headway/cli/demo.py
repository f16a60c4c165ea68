"""`make demo`: a real language model and a real sentence encoder with every attention backend, then put to use."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

SENTENCES = [
    "The cat sleeps on the warm windowsill.", "Interest rates were raised by a quarter point.", "A kitten naps in the sun.",
    "She tuned her violin before the concert.", "The central bank tightened monetary policy.", "Rain is expected tomorrow.",
    "The orchestra rehearsed all afternoon.", "Stock markets fell after the announcement.", "He baked bread with rye flour.",
    "A storm will reach the coast by evening.", "The bakery opens at six in the morning.", "Goalkeepers train separately.",
]  # fmt: skip


def main() -> None:
    from headway.cli.compare import run
    from headway.encoding import Encoder

    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "models")
    for name in ("smollm2-135m", "minilm"):
        run(folder / name, None, None, None, False, False, 128, 3, False, None)
        print()
    from headway.checkpoints.load import load
    from headway.generation import generate_text
    from headway.text.load import load_tokenizer

    model, tokenizer = load(folder / "smollm2-135m"), load_tokenizer(folder / "smollm2-135m")
    prompt = tokenizer.chat([{"role": "user", "content": "Name three things a lighthouse keeper does at night."}])
    print("SmolLM2 says:", (generate_text(model, tokenizer, [prompt], max_new_tokens=60).texts or [""])[0].strip(), "\n")

    vectors = np.asarray(Encoder.load(folder / "minilm")(SENTENCES))
    similar = np.triu(vectors @ vectors.T, k=1)
    print("The most similar of twelve sentences:")
    for flat in np.argsort(similar, axis=None)[::-1][:3]:
        i, j = np.unravel_index(flat, similar.shape)
        print(f"  {similar[i, j]:.2f}  {SENTENCES[i]}  ~  {SENTENCES[j]}")


if __name__ == "__main__":
    main()
