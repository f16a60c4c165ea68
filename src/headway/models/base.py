"""What every model has: a config, an attention switch, initialisation, saving."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from headway.attention import AttentionSwitch
from headway.attention.masks import Band
from headway.errors import InputError
from headway.models.config import Config


class PreTrainedModel(nn.Module):
    """Base of all models.

    base_model_prefix: the attribute that holds the backbone in models with a head, and the prefix of its parameters.
    tied_weights: parameters that a checkpoint may lack because another one is the same: {absent: present}.
    """

    base_model_prefix: ClassVar[str] = ""
    tied_weights: ClassVar[dict[str, str]] = {}
    config_class: ClassVar[type[Config]] = Config

    def __init__(self, config: Any):
        super().__init__()
        self.config = config

    @property
    def attention(self) -> AttentionSwitch:
        """Chooses and explains the attention backend of this model, live: `model.attention.use("tiled", layers=[0])`."""
        return AttentionSwitch(self)

    @property
    def backbone(self) -> Any:
        """The model without its head."""
        return getattr(self, self.base_model_prefix)

    def post_init(self) -> None:
        """To be called at the end of a model's `__init__`: initial weights, and tied ones made one."""
        for module in self.modules():
            if not any(p.is_meta for p in module.parameters(recurse=False)):
                self.init_weights(module)
        self.tie_weights()

    def init_weights(self, module: nn.Module) -> None:
        """Initial values of one module: normal with `initializer_range`, zero biases, norms as they are."""
        std = self.config.initializer_range
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=std)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=std)
            if module.padding_idx is not None:
                with torch.no_grad():
                    module.weight[module.padding_idx].zero_()

    def tie_weights(self) -> None:
        """Makes tied parameters one tensor, as the config says."""
        if not self.config.tie_word_embeddings:
            return
        for absent, present in self.tied_weights.items():
            owner, _, name = absent.rpartition(".")
            setattr(self.get_submodule(owner), name, self.get_parameter(present))

    def init_buffers(self) -> None:
        """Recomputes buffers that no checkpoint holds (after building on the meta device)."""
        for module in self.modules():
            if module is not self and hasattr(module, "init_buffers"):
                module.init_buffers()  # type: ignore[operator]

    def save_pretrained(self, directory, **options) -> None:
        """Writes config.json and safetensors that Hugging Face transformers and Headway load. See `checkpoints.save`."""
        from headway.checkpoints.save import save_model

        save_model(self, directory, **options)

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        return next(self.parameters()).dtype

    def num_parameters(self) -> int:
        """Number of parameters, tied ones counted once."""
        return sum(p.numel() for p in self.parameters())

    def windows(self) -> dict[int, int]:
        """The window of each attention layer that has a causal one: what `SlidingCache` needs."""
        backbone: Any = getattr(self, self.base_model_prefix, self)
        if not hasattr(backbone, "bands"):
            return {}
        found = {}
        for number, layer in self.attention.layers().items():
            band = backbone.bands()[layer.kind]
            if isinstance(band, Band) and band.left is not None and band.right == 0:
                found[number] = band.left + 1
        return found

    def needs_history(self, cache) -> bool:
        """Whether generation must keep all tokens, since this model may ask for a refill."""
        return _original_length(self.config) is not None

    def needs_refill(self, cache) -> bool:
        """Whether the next token takes some row past the length at which its rotary scaling changes: what is cached was
        computed with the other frequencies, and the whole sequence must run again."""
        old = _original_length(self.config)
        return old is not None and bool((cache.lengths == old).any())

    def refuse_stale(self, step) -> None:
        """Raises InputError where new tokens take a row past the length at which its rotary scaling changes."""
        old = _original_length(self.config)
        if old is None or step is None or step.fresh or torch.compiler.is_compiling():
            return
        if bool(((step.before > 0) & (step.before <= old) & (step.after > old)).any()):
            raise InputError(
                f"a row passes {old} tokens, where this model's rotary scaling changes: what is cached was computed with other "
                "frequencies. Run the whole sequence with an empty cache, as headway.generation does"
            )

    def checkpointed(self, layer: nn.Module, *args) -> Tensor:
        """Runs a layer, recomputing it in the backward pass if `gradient_checkpointing` is on."""
        if self.training and getattr(self, "gradient_checkpointing", False):
            return torch.utils.checkpoint.checkpoint(layer, *args, use_reentrant=False)
        return layer(*args)


def _original_length(config: Config) -> int | None:
    """The length at which longrope (or dynamic) scaling switches, if the model has one."""
    rope = getattr(config, "rope_parameters", None) or {}
    for one in rope.values() if any(isinstance(v, dict) for v in rope.values()) else [rope]:
        if one.get("rope_type") == "longrope":
            return one.get("original_max_position_embeddings") or getattr(config, "original_max_position_embeddings", None)
    return None
