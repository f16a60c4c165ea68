"""Which class serves a config and a task. Modules are imported only when asked for."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from headway.errors import HeadwayError

TASKS = (
    "base",
    "causal-lm",
    "masked-lm",
    "sequence-classification",
    "token-classification",
    "question-answering",
    "multiple-choice",
)

_DECODER = {
    "base": "{}Model",
    "causal-lm": "{}ForCausalLM",
    "sequence-classification": "{}ForSequenceClassification",
    "token-classification": "{}ForTokenClassification",
    "question-answering": "{}ForQuestionAnswering",
}
_ENCODER = {
    "base": "{}Model",
    "masked-lm": "{}ForMaskedLM",
    "sequence-classification": "{}ForSequenceClassification",
    "token-classification": "{}ForTokenClassification",
    "question-answering": "{}ForQuestionAnswering",
    "multiple-choice": "{}ForMultipleChoice",
}


def _named(prefix: str, tasks: dict[str, str], drop: tuple[str, ...] = (), **override: str) -> dict[str, str]:
    table = {t: name.format(prefix) for t, name in tasks.items() if t not in drop}
    return {**table, **{t.replace("_", "-"): name for t, name in override.items()}}


# model_type -> (module under headway.models, class prefix, {task: class})
FAMILIES: dict[str, tuple[str, str, dict[str, str]]] = {
    "llama": ("llama", "Llama", _named("Llama", _DECODER)),
    "gemma": ("gemma", "Gemma", _named("Gemma", _DECODER, ("question-answering",))),
    "gemma2": ("gemma2", "Gemma2", _named("Gemma2", _DECODER, ("question-answering",))),
    "gemma3_text": (
        "gemma3",
        "Gemma3Text",
        {
            "base": "Gemma3TextModel",
            "causal-lm": "Gemma3ForCausalLM",
            "sequence-classification": "Gemma3TextForSequenceClassification",
        },
    ),
    "phi3": ("phi3", "Phi3", _named("Phi3", _DECODER, ("question-answering",))),
    "glm": ("glm", "Glm", _named("Glm", _DECODER, ("question-answering",))),
    "gpt2": ("gpt2", "GPT2", {**_named("GPT2", _DECODER), "causal-lm": "GPT2LMHeadModel"}),
    "modernbert": ("modernbert", "ModernBert", _named("ModernBert", _ENCODER)),
    "bert": ("bert", "Bert", _named("Bert", _ENCODER)),
}


def family_of(config: dict[str, Any]) -> tuple[str, str, dict[str, str]]:
    """The entry of FAMILIES for a config.json; HeadwayError listing the known types otherwise."""
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        names = ", ".join(sorted(FAMILIES))
        raise HeadwayError(f"unknown architecture: model_type {kind!r}; Headway has {names}")
    return FAMILIES[kind]


def config_class(config: dict[str, Any]):
    """The config class for a config.json."""
    module, prefix, _ = family_of(config)
    return getattr(import_module(f"headway.models.{module}.configuration_{module}"), f"{prefix}Config")


def resolve(config: dict[str, Any], task: str | None = None):
    """`(config class, model class)`. Task None: the architecture that the config names, else the base model."""
    module, _, classes = family_of(config)
    if task is not None and task not in TASKS:
        raise HeadwayError(f"unknown task {task!r}; known: {', '.join(TASKS)}")
    if task is None:
        wanted = (config.get("architectures") or [None])[0]
        name = wanted if wanted in classes.values() else classes["base"]
    elif task in classes:
        name = classes[task]
    else:
        raise HeadwayError(f"{config['model_type']} models have no task {task!r}; they have {', '.join(classes)}")
    modeling = import_module(f"headway.models.{module}.modeling_{module}")
    return config_class(config), getattr(modeling, name)
