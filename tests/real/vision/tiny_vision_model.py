"""Tiny vision models with random weights beside Qwen's tokenizer: a real engine serves them like large ones.

* `llava`: CLIP's image processor on Pillow, 16 x 16 patches of a square of 224 pixels: 256 placeholders for every image.
* `qwen2_vl`: patches of the native proportions, as many as `MOST_PIXELS` allow, between two marks of their own.

The models are written by this file run as a script under the engine's python, which has torch; ours has not.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

MOST_PIXELS = 28 * 28 * 600
TEXT_MODEL = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": True,
}
IMAGE_MARKS = {"llava": "<image>\n", "qwen2_vl": "<|vision_start|><|image_pad|><|vision_end|>"}
SPECIAL = {
    "llava": ["<image>"],
    "qwen2_vl": ["<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>"],
}


def vision_model_directory(kind: str, python: Path, tokenizer: Path, cache: Path) -> Path:
    """Directory of a tiny model of this kind; made once for each tokenizer and recipe, as `tiny_model_directory` does."""
    content = hashlib.sha256(Path(__file__).read_bytes() + kind.encode())
    for file in sorted(path for path in tokenizer.iterdir() if path.is_file()):
        content.update(file.name.encode() + b"\0" + hashlib.sha256(file.read_bytes()).digest())
    model = cache / f"{kind}-{content.hexdigest()[:16]}"
    if model.is_dir():
        return model
    cache.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix="draft-", dir=cache))
    try:
        subprocess.run(
            [python, __file__, kind, tokenizer, draft],
            stdin=subprocess.DEVNULL,
            check=True,
            env={**os.environ, "HF_HUB_OFFLINE": "1"},
        )
        draft.chmod(0o755)
        draft.rename(model)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return model


def chat_template(image_mark: str) -> str:
    """ChatML; an image is its mark, a text stands as it is."""
    return (
        r"{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
        r"{% if message['content'] is string %}{{ message['content'] }}{% else %}"
        r"{% for part in message['content'] %}{% if part['type'] == 'image' %}{{ '"
        + image_mark.replace("\n", r"\n")
        + r"' }}{% elif part['type'] == 'text' %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}"
        r"{{ '<|im_end|>' + '\n' }}{% endfor %}"
        r"{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )


def write_model(kind: str, source: Path, directory: Path) -> None:
    """Weights, configuration, processor, template and tokenizer."""
    import torch
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(source)
    chat_marks = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokenizer.add_special_tokens({"additional_special_tokens": [*chat_marks, *SPECIAL[kind]]})
    torch.manual_seed(0)
    text = {
        **TEXT_MODEL,
        "vocab_size": max(tokenizer.get_vocab().values()) + 1,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    make = {"llava": _llava, "qwen2_vl": _qwen2_vl}[kind]
    make(tokenizer, text).to(torch.bfloat16).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    (directory / "chat_template.jinja").write_text(chat_template(IMAGE_MARKS[kind]), encoding="utf-8")
    _write_processor(kind, tokenizer, directory)


def _llava(tokenizer: Any, text: dict[str, Any]) -> Any:
    from transformers import CLIPVisionConfig, LlavaConfig, LlavaForConditionalGeneration, Qwen2Config

    vision = CLIPVisionConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=224,
        patch_size=14,
        projection_dim=64,
    )
    return LlavaForConditionalGeneration(
        LlavaConfig(
            vision_config=vision,
            text_config=Qwen2Config(**text),
            image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
            vision_feature_select_strategy="default",
            vision_feature_layer=-2,
            tie_word_embeddings=True,
        )
    )


def _qwen2_vl(tokenizer: Any, text: dict[str, Any]) -> Any:
    from transformers import Qwen2VLConfig, Qwen2VLForConditionalGeneration

    def token(name: str) -> int:
        return int(tokenizer.convert_tokens_to_ids(name))

    return Qwen2VLForConditionalGeneration(
        Qwen2VLConfig(
            text_config={**text, "rope_scaling": {"type": "mrope", "mrope_section": [4, 6, 6]}},
            vision_config={
                "depth": 2,
                "embed_dim": 64,
                "num_heads": 2,
                "hidden_size": 128,
                "patch_size": 14,
                "mlp_ratio": 2,
                "in_channels": 3,
                "spatial_merge_size": 2,
                "temporal_patch_size": 2,
            },
            image_token_id=token("<|image_pad|>"),
            video_token_id=token("<|video_pad|>"),
            vision_start_token_id=token("<|vision_start|>"),
            vision_end_token_id=token("<|vision_end|>"),
            tie_word_embeddings=True,
        )
    )


def _write_processor(kind: str, tokenizer: Any, directory: Path) -> None:
    if kind == "llava":
        from transformers import LlavaProcessor
        from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

        square = {"height": 224, "width": 224}
        LlavaProcessor(
            CLIPImageProcessorPil(size={"shortest_edge": 224}, crop_size=square),
            tokenizer,
            patch_size=14,
            vision_feature_select_strategy="default",
            num_additional_image_tokens=1,
            chat_template=chat_template(IMAGE_MARKS[kind]),
        ).save_pretrained(directory)
    else:
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

        Qwen2VLImageProcessorPil(min_pixels=56 * 56, max_pixels=MOST_PIXELS).save_pretrained(directory)


if __name__ == "__main__":
    write_model(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
