"""Headway's plugin against what transformers itself offers, on the CPU: interleaved runs, medians, ratios, peak memory.

    python -m benchmarks.plugin [case ...]

Each case runs both sides by turns in this process; a ratio is the median over pairs of (transformers' time / Headway's).
Peak memory is measured in a process of its own for each side: the growth of the resident set over the idle model.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

import torch

PAIRS = 3


def gemma2(length: int = 4096):
    import transformers as tf

    config = tf.Gemma2Config(
        vocab_size=256, hidden_size=1024, intermediate_size=1024, num_hidden_layers=2, num_attention_heads=8,
        num_key_value_heads=4, head_dim=128, sliding_window=1024, use_cache=False, max_position_embeddings=length,
    )  # fmt: skip
    return tf.Gemma2Model(config), ids(1, length), None


def modernbert(length: int = 8192):
    import transformers as tf

    config = tf.ModernBertConfig(vocab_size=256, num_hidden_layers=22, max_position_embeddings=length, pad_token_id=0,
                                 cls_token_id=1, sep_token_id=2, bos_token_id=1, eos_token_id=2)  # fmt: skip
    return tf.ModernBertModel(config), ids(1, length), None


def gpt_oss(length: int = 2048):
    import transformers as tf

    config = tf.GptOssConfig(
        vocab_size=256, hidden_size=512, intermediate_size=256, num_hidden_layers=2, num_attention_heads=16,
        num_key_value_heads=4, head_dim=64, num_local_experts=2, num_experts_per_tok=1, sliding_window=128, use_cache=False,
        pad_token_id=0,
    )  # fmt: skip
    return tf.GptOssModel(config), ids(1, length), None


def bert(rows: int = 16):
    """Lengths from a normal distribution, mean 256, deviation 64, within 16 to 512."""
    import transformers as tf

    g = torch.Generator().manual_seed(0)
    lengths = (torch.randn(rows, generator=g) * 64 + 256).long().clamp(16, 512)
    mask = (torch.arange(int(lengths.max()))[None] < lengths[:, None]).long()
    return tf.BertModel(tf.BertConfig(vocab_size=256)), ids(rows, mask.shape[1]) * mask, mask


def llama(length: int = 1024):
    """Plain causal attention, where sdpa is at its best."""
    import transformers as tf

    config = tf.LlamaConfig(
        vocab_size=256, hidden_size=512, intermediate_size=1024, num_hidden_layers=4, num_attention_heads=8, use_cache=False
    )
    return tf.LlamaModel(config), ids(2, length), None


def vit():
    import transformers as tf

    return tf.ViTModel(tf.ViTConfig(num_hidden_layers=4)), torch.randn(4, 3, 224, 224), None


def bert_full():
    model, x, _ = bert(8)
    return model, x[:, :256].clamp(min=3), None


CASES = {  # name: (model and batch, transformers' best correct implementation, Headway's way, the ratio aimed at)
    "gemma2 4096": (gemma2, "eager", "headway", 4.0),
    "modernbert-base 8192": (modernbert, "sdpa", "headway", 1.9),
    "gpt-oss-like 2048": (gpt_oss, "eager", "headway", 2.0),
    "bert-base N(256,64)": (bert, "sdpa", "unpad", 1.6),
    "llama 1024": (llama, "sdpa", "headway", 0.97),
    "bert-base 256": (bert_full, "sdpa", "headway", 0.97),
    "vit-base": (vit, "sdpa", "headway", 0.97),
}


def ids(rows: int, length: int):
    return torch.randint(3, 256, (rows, length), generator=torch.Generator().manual_seed(0))


def prepare(case: str, theirs: bool):
    """A function that runs the model once under transformers' implementation or under Headway's."""
    from headway.integrations.transformers import register, unpad

    build, best, ours, _ = CASES[case]
    register()
    torch.manual_seed(0)
    model, x, mask = build()
    model.eval()
    model.set_attn_implementation(best if theirs else "headway")
    if not theirs and ours == "unpad":
        unpad(model)
    more = {} if mask is None else {"attention_mask": mask}

    @torch.no_grad()
    def run():
        out = model(x, **more)[0]
        return out if mask is None else out[mask.bool()]

    return run


def measure(case: str) -> tuple[float, float, float, float]:
    """Medians of both times in seconds, the median ratio, and the largest relative difference of the outputs."""
    theirs, ours = prepare(case, True), prepare(case, False)
    a, b = theirs(), ours()
    difference = float((a - b).abs().max() / a.abs().max())
    pairs = []
    for i in range(PAIRS):
        times = {}
        for side in ("theirs", "ours") if i % 2 else ("ours", "theirs"):
            start = time.perf_counter()
            (theirs if side == "theirs" else ours)()
            times[side] = time.perf_counter() - start
        pairs.append((times["theirs"], times["ours"]))
    t, o = (statistics.median(p[i] for p in pairs) for i in (0, 1))
    return t, o, statistics.median(p[0] / p[1] for p in pairs), difference


def peak_memory(case: str, theirs: bool) -> float:
    """MiB that one run adds to the resident set of a process of its own."""
    out = subprocess.run(
        [sys.executable, "-m", "benchmarks.plugin", "--memory", case, str(int(theirs))],
        capture_output=True,
        text=True,
        check=True,
    )
    return float(out.stdout.split()[-1])


def memory_here(case: str, theirs: bool) -> float:
    run = prepare(case, theirs)
    before = _status("VmRSS")
    run()
    return (_status("VmHWM") - before) / 1024


def _status(field: str) -> int:
    """KiB. (`ru_maxrss` of a child starts at its parent's size.)"""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(field))


def main() -> None:
    import transformers

    transformers.logging.set_verbosity_error()
    if "--memory" in sys.argv:
        case, theirs = sys.argv[-2:]
        print(memory_here(case, theirs == "1"))
        return
    print(f"torch {torch.__version__}, transformers {transformers.__version__}, {torch.get_num_threads()} threads")
    print("| case | transformers | s | Headway s | ratio | aim | peak MiB | Headway peak MiB | difference |")
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    for case in sys.argv[1:] or CASES:
        t, o, ratio, difference = measure(case)
        memory = [peak_memory(case, side) for side in (True, False)]
        _, best, _, aim = CASES[case]
        numbers = f"{t:.2f} | {o:.2f} | {ratio:.2f} | {aim} | {memory[0]:.0f} | {memory[1]:.0f} | {difference:.0e}"
        print(f"| {case} | {best} | {numbers} |", flush=True)


if __name__ == "__main__":
    main()
