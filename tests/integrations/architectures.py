"""transformers architectures, tiny and random, and what `headway` gives for each against `eager`.

A text model sees rows padded on the left and on the right, an encoder-decoder pads its encoder, a vision model sees
pixels. Outputs at real tokens and all gradients must agree; where the model generates, the tokens and logits too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

COMMON: dict[str, Any] = {
    "vocab_size": 99, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
    "max_position_embeddings": 64,
}  # fmt: skip
MHA = {"num_key_value_heads": 4}
WINDOW = {"sliding_window": 5}
CAP = {"attn_logit_softcapping": 1.0}  # low enough to act on small scores
MOE = {
    "num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_routed_experts": 4,
    "shared_expert_intermediate_size": 32, "n_group": 1, "topk_group": 1,
}  # fmt: skip
MLA = MHA | MOE | {
    "kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 16, "qk_head_dim": 16,
    "first_k_dense_replace": 1, "n_shared_experts": 1, "head_dim": 8,
}  # fmt: skip
BOTH_SIDES = {
    "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4, "d_model": 64,
    "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "decoder_start_token_id": 1,
}  # fmt: skip
T5 = {"d_model": 64, "d_ff": 64, "d_kv": 16, "num_heads": 4, "num_layers": 2, "decoder_start_token_id": 0}
VISION = {"image_size": 32, "patch_size": 8, "num_channels": 3, **MHA}
SPEECH = {
    "conv_dim": (32, 32), "conv_stride": (5, 2), "conv_kernel": (10, 3), "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 2,
}  # fmt: skip


@dataclass(frozen=True)
class Architecture:
    name: str  # of transformers, without Config
    kind: str  # decoder, encoder, both, vision, speech
    head: str  # the model class
    config: dict
    trait: str = ""  # what makes its attention special


def _decoders():
    plain = [
        ("Llama", {}, ""),
        ("Qwen2", {}, "bias in q, k, v"),
        ("Qwen3", {}, "normed q, k"),
        ("Olmo", {}, ""),
        ("Olmo2", {}, ""),
        ("Granite", {"attention_multiplier": 0.3}, "own scale"),
        ("Cohere", {}, ""),
        ("StableLm", {}, ""),
        ("Glm", {}, ""),
        ("Glm4", {}, ""),
        ("Helium", {}, ""),
        ("Nemotron", {}, ""),
        ("SmolLM3", {}, "layers without positions"),
        ("Ernie4_5", {}, ""),
        ("SeedOss", {}, ""),
        ("HunYuanDenseV1", {}, ""),
        ("Arcee", {}, ""),
        ("Apertus", {}, ""),
        ("Persimmon", MHA, ""),
        ("Phi", MHA, ""),
        ("Gemma", {}, ""),
        ("BitNet", {}, ""),
        ("Exaone4", WINDOW, "window"),
        ("Mistral", WINDOW, "window"),
        ("Starcoder2", WINDOW, "window"),
        ("Phi3", WINDOW, "window"),
        ("Cohere2", WINDOW, "window"),
        ("Olmo3", WINDOW, "window"),
        ("Gemma2", WINDOW | CAP, "window, soft cap, own scale"),
        ("Gemma3Text", WINDOW, "window, own scale"),
        ("VaultGemma", WINDOW | CAP, "window, soft cap"),
        ("Ministral", WINDOW, "window"),
        ("Qwen2Moe", MOE, "experts"),
        ("Qwen3Moe", MOE, "experts"),
        ("Mixtral", WINDOW | MOE, "window, experts"),
        ("Olmoe", MOE, "experts"),
        ("GptOss", WINDOW | MOE, "sinks, window, experts"),
        ("DeepseekV2", MLA, "latent attention, narrow values"),
        ("DeepseekV3", MLA, "latent attention, narrow values"),
        ("Dots1", MOE | WINDOW | {"first_k_dense_replace": 1, "n_shared_experts": 1}, "experts"),
        ("Llama4Text", MOE | {"attention_chunk_size": 5, "intermediate_size_mlp": 64}, "chunks, experts"),
        ("GPTNeoX", MHA, ""),
        ("GPTNeoXJapanese", MHA, ""),
        ("Bloom", MHA | {"n_layer": 2, "n_head": 4}, "ALiBi"),
        ("Falcon", MHA, ""),
        ("GPTJ", {"n_embd": 64, "n_layer": 2, "n_head": 4, "rotary_dim": 8, "n_positions": 64}, ""),
        ("CodeGen", {"n_embd": 64, "n_layer": 2, "n_head": 4, "rotary_dim": 8, "n_positions": 64}, ""),
        ("GPT2", {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64}, ""),
        ("GPTBigCode", {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64}, "one key head"),
        (
            "GPTNeo",
            MHA | {"attention_types": [[["global", "local"], 1]], "num_layers": 2, "num_heads": 4, "window_size": 5},
            "window",
        ),
        ("OPT", MHA | {"ffn_dim": 64, "word_embed_proj_dim": 64}, ""),
        ("BioGpt", MHA, ""),
        ("XGLM", {"d_model": 64, "ffn_dim": 64, "num_layers": 2, "attention_heads": 4}, ""),
        ("Mpt", {"d_model": 64, "n_heads": 4, "n_layers": 2, "max_seq_len": 64}, "ALiBi"),
        ("MiniMax", MOE | {"block_size": 4}, "linear layers"),
        ("Lfm2", {"conv_L_cache": 3}, "convolutions"),
        ("Jamba", MOE | {"mamba_d_state": 4, "mamba_expand": 2, "attn_layer_period": 2, "attn_layer_offset": 1}, "state space"),
    ]
    for name, more, trait in plain:
        config = COMMON | more
        if name == "Falcon":
            config = {k: v for k, v in config.items() if k != "head_dim"}
        heads = {"Gemma3Text": "Gemma3ForCausalLM", "Llama4Text": "Llama4ForCausalLM", "GPT2": "GPT2LMHeadModel"}
        yield Architecture(name, "decoder", heads.get(name, f"{name}ForCausalLM"), config, trait)


def _encoders():
    plain = [
        ("Bert", {}, ""),
        ("Roberta", {}, ""),
        ("XLMRoberta", {}, ""),
        ("Electra", {"embedding_size": 64}, ""),
        ("Camembert", {}, ""),
        ("DistilBert", {"dim": 64, "hidden_dim": 64, "n_heads": 4, "n_layers": 2}, ""),
        ("MPNet", {}, "relative bias"),
        ("Albert", {"embedding_size": 64}, ""),
        ("ModernBert", {"local_attention": 6, "cls_token_id": 1, "sep_token_id": 2}, "window"),
        ("EuroBert", {}, ""),
        ("NomicBert", {}, ""),
        ("JinaEmbeddingsV3", {}, ""),
        ("Ernie", {}, ""),
        ("Data2VecText", {}, ""),
        ("RobertaPreLayerNorm", {}, ""),
        ("MegatronBert", {}, ""),
        ("RoFormer", {"embedding_size": 64}, ""),
        ("Esm", {}, ""),
        ("XLMRobertaXL", {}, ""),
        ("MobileBert", {"embedding_size": 64, "true_hidden_size": 64, "intra_bottleneck_size": 64}, ""),
        ("DebertaV2", {}, "disentangled bias"),
        ("Xmod", {"languages": ["a"], "default_language": "a"}, ""),
        ("ConvBert", {"embedding_size": 64}, "convolutions"),
        ("BertGeneration", {}, ""),
        ("LayoutLM", {}, ""),
        ("Luke", {"entity_vocab_size": 9}, ""),
        ("CLIPText", {}, "causal"),
        ("SiglipText", {}, ""),
        ("Splinter", {}, ""),
        ("Longformer", {"attention_window": 4}, "window, own masks"),
    ]
    for name, more, trait in plain:
        head = {"CLIPText": "CLIPTextModel", "SiglipText": "SiglipTextModel", "BertGeneration": "BertGenerationEncoder"}
        yield Architecture(name, "encoder", head.get(name, f"{name}Model"), COMMON | MHA | more, trait)


def _others():
    both = [
        ("Bart", BOTH_SIDES, ""),
        ("MBart", BOTH_SIDES, ""),
        ("Pegasus", BOTH_SIDES, ""),
        ("Marian", BOTH_SIDES, ""),
        ("M2M100", BOTH_SIDES, ""),
        ("Blenderbot", BOTH_SIDES, ""),
        ("BlenderbotSmall", BOTH_SIDES, ""),
        ("PLBart", BOTH_SIDES, ""),
        ("T5", T5, "relative bias, no scale"),
        ("MT5", T5, "relative bias, no scale"),
        ("UMT5", T5, "relative bias, no scale"),
        ("Longt5", T5 | {"local_radius": 3}, "blocks"),
        ("NllbMoe", BOTH_SIDES | {"num_experts": 4}, "experts"),
        ("SwitchTransformers", T5 | {"num_experts": 2}, "relative bias, experts"),
        ("LED", BOTH_SIDES | {"attention_window": 4}, "own masks"),
    ]
    names = {"Longt5": "LongT5", "MT5": "MT5", "UMT5": "UMT5"}
    for name, more, trait in both:
        name = names.get(name, name)
        head = "MarianMTModel" if name == "Marian" else f"{name}ForConditionalGeneration"
        yield Architecture(name, "both", head, COMMON | MHA | more, trait)
    vision = [
        ("ViT", {}, ""),
        ("DeiT", {}, ""),
        ("Dinov2", {}, ""),
        ("Dinov2WithRegisters", {}, ""),
        ("DINOv3ViT", {}, ""),
        ("ViTMSN", {}, ""),
        ("ViTMAE", {"mask_ratio": 0.0}, ""),
        ("CLIPVision", {}, ""),
        ("SiglipVision", {}, ""),
        ("IJepa", {}, ""),
        ("Beit", {"use_relative_position_bias": True}, "relative bias"),
        ("Yolos", {"num_detection_tokens": 4, "image_size": [32, 32]}, ""),
        ("Data2VecVision", {"use_relative_position_bias": True}, "relative bias"),
        ("VideoMAE", {"num_frames": 2}, "video"),
        ("ViViT", {"num_frames": 2, "tubelet_size": [2, 8, 8]}, "video"),
        ("DPT", {"is_hybrid": False}, ""),
        ("PixtralVision", {}, "documents"),
    ]
    heads = {"ViViT": ("Vivit", "VivitModel"), "PixtralVision": ("PixtralVision", "PixtralVisionModel")}
    for name, more, trait in vision:
        name, head = heads.get(name, (name, f"{name}Model"))
        yield Architecture(name, "vision", head, COMMON | VISION | more, trait)
    for name in ("Wav2Vec2", "Hubert", "WavLM", "UniSpeech"):
        yield Architecture(name, "speech", f"{name}Model", COMMON | MHA | SPEECH, "gated bias" if name == "WavLM" else "")
    whisper = COMMON | BOTH_SIDES | {"num_mel_bins": 8, "max_source_positions": 10, "max_target_positions": 32}
    yield Architecture("Whisper", "mel", "WhisperForConditionalGeneration", whisper, "speech")


ARCHITECTURES = (*_decoders(), *_encoders(), *_others())
