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
    """The attention of one Gemma 2 2B block, soft cap 50, of which eager is the only correct implementation."""
    from transformers.models.gemma2 import modeling_gemma2 as m

    return attention_of(m, 8, 4, 256, length, {"softcap": 50.0, "scaling": 256**-0.5, "dropout": 0.0}, None)


def gpt_oss(length: int = 2048):
    """The attention of two gpt-oss blocks: sinks, one with a window of 128, one without."""
    from transformers.models.gpt_oss import modeling_gpt_oss as m

    sinks = torch.randn(64, generator=torch.Generator().manual_seed(1))
    return attention_of(m, 64, 8, 64, length, {"scaling": 64**-0.5, "dropout": 0.0, "s_aux": sinks}, 128)


def attention_of(module, heads: int, kv_heads: int, dim: int, length: int, call: dict, window: int | None):
    """(their function, ours) on the same q, k, v: full causal attention, and once more with the window if there is one."""
    from transformers.masking_utils import causal_mask_function, eager_mask, sliding_window_causal_mask_function

    from headway.integrations.transformers.call import attend
    from headway.integrations.transformers.register import make_mask

    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, h, length, dim, generator=g) for h in (heads, kv_heads, kv_heads))
    functions = [causal_mask_function] + ([sliding_window_causal_mask_function(window)] if window else [])
    layer = torch.nn.Module().eval()
    layer.num_key_value_groups = heads // kv_heads
    layer.sinks = call.get("s_aux")

    def side(attention, mask):
        made = [mask(1, length, length, mask_function=f) for f in functions]  # once per forward in both
        return lambda: torch.cat([attention(layer, q, k, v, m, **call)[0] for m in made])

    return lambda theirs: side(module.eager_attention_forward, eager_mask) if theirs else side(attend, make_mask)


def modernbert(length: int = 8192):
    """Of ModernBERT-base, 3 of the 22 layers: a global and two local ones."""
    import transformers as tf

    config = tf.ModernBertConfig(
        vocab_size=256, num_hidden_layers=3, max_position_embeddings=length, pad_token_id=0, cls_token_id=1, sep_token_id=2,
        bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    return tf.ModernBertModel(config), ids(1, length), None


def bert(rows: int = 8):
    """Of BERT-base, 3 of the 12 layers. Lengths from a normal distribution, mean 256, deviation 64, within 16 to 512."""
    import transformers as tf

    g = torch.Generator().manual_seed(0)
    lengths = (torch.randn(rows, generator=g) * 64 + 256).long().clamp(16, 512)
    mask = (torch.arange(int(lengths.max()))[None] < lengths[:, None]).long()
    return tf.BertModel(tf.BertConfig(vocab_size=256, num_hidden_layers=3)), ids(rows, mask.shape[1]) * mask, mask


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
    model, x, _ = bert()
    return model, x[:, :256].clamp(min=3), None


CASES = {  # name: (model and batch, transformers' best correct implementation, Headway's way, the ratio aimed at)
    "gemma2-2b attention 4096": (gemma2, "eager", "headway", 4.0),
    "modernbert-base 8192, 3 layers": (modernbert, "sdpa", "headway", 1.9),
    "gpt-oss attention 2048": (gpt_oss, "eager", "headway", 2.0),
    "bert-base, 3 layers, N(256,64)": (bert, "sdpa", "unpad", 1.6),
    "llama 1024": (llama, "sdpa", "headway", 0.97),
    "bert-base, 3 layers, 256": (bert_full, "sdpa", "headway", 0.97),
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
    built = build()
    if callable(built):
        return torch.no_grad()(built(theirs))
    model, x, mask = built
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
