"""Attention imports only torch (and numpy), and everything works with every optional package blocked."""

from __future__ import annotations

import subprocess
import sys

BLOCK = (
    "import sys\nsys.modules.update(dict.fromkeys({names}))\n"  # None there: importing it fails, looking for it finds nothing
)
OPTIONAL = {
    "transformers", "gguf", "flash_attn", "flash_attn_interface", "xformers", "mslk", "datasets", "pyarrow", "sklearn",
    "seqeval", "tensorboard", "peft", "accelerate", "matplotlib", "sentence_transformers", "ruff", "ray", "PIL", "pandas",
    "sentencepiece",
}  # fmt: skip
CALL = "q = torch.randn(1, 2, 5, 8); assert torch.isfinite(attention(q, q, q, mask=masks.causal(), softcap=2.0)).all()"


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_headway_runs_with_every_optional_package_blocked():
    python(BLOCK.format(names=OPTIONAL) + f"import headway, torch\nfrom headway.attention import attention, masks\n{CALL}")


def test_models_run_with_every_optional_package_blocked():
    python(
        BLOCK.format(names=OPTIONAL)
        + "import torch\nfrom headway.models.llama.modeling_llama import LlamaForCausalLM\n"
        + "from headway.models.llama.configuration_llama import LlamaConfig\n"
        + "m = LlamaForCausalLM(LlamaConfig(vocab_size=9, hidden_size=8, intermediate_size=8, num_hidden_layers=1, "
        + "num_attention_heads=2))\nassert m(torch.tensor([[1, 2, 3]])).logits.shape == (1, 3, 9)"
    )


def test_attention_works_without_the_rest_of_headway_and_its_dependencies():
    rest = {"safetensors", "tokenizers", "huggingface_hub", "jinja2", "typer", "rich"}
    code = BLOCK.format(names=OPTIONAL | rest)
    code += f"import torch\nfrom headway.attention import attention, masks\n{CALL}\n"
    code += "print(sorted(m for m in sys.modules if m.startswith('headway.') and not m.startswith('headway.attention')))"
    assert python(code).strip() == "[]"


def test_importing_headway_imports_nothing_heavy():
    heavy = {"transformers", "tokenizers", "gguf", "rich", "typer", "safetensors", "jinja2", "pyarrow"}
    out = python("import torch, sys\nbefore = set(sys.modules)\nimport headway\nprint(sorted(set(sys.modules) - before))")
    assert not heavy & {name.split(".")[0].strip("'[] ") for name in out.split(",")}
