"""A tiny Qwen2 model with random weights beside any tokenizer: a real engine serves it like a large one.

Hidden size 128, 2 layers, 4 heads, 2 KV heads (head size 32, the smallest that vLLM's CPU attention takes), tied
embeddings, bfloat16, a fixed seed.

The model is written by this file run as a script under the engine's python, which has torch; ours has not.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

MAX_POSITION_EMBEDDINGS = 131072

# ChatML, as Qwen's own template writes plain conversations; the simulator speaks it too.
CHAT_TEMPLATE = (
    r"{% for message in messages %}"
    r"{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    r"{% endfor %}"
    r"{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def tiny_model_directory(python: Path, tokenizer: Path, cache: Path) -> Path:
    """Directory of a tiny model that chats, with a copy of `tokenizer`'s files beside it; made once for each tokenizer.

    `python`: an interpreter with torch and transformers. `tokenizer`: a directory that AutoTokenizer loads.
    `cache`: where models are kept, named by the content of the tokenizer and of this recipe.
    """
    content = hashlib.sha256(Path(__file__).read_bytes())
    for file in sorted(path for path in tokenizer.iterdir() if path.is_file()):
        content.update(file.name.encode() + b"\0" + hashlib.sha256(file.read_bytes()).digest())
    model = cache / content.hexdigest()[:16]
    if model.is_dir():
        return model

    cache.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix="draft-", dir=cache))
    try:
        for file in tokenizer.iterdir():
            if file.is_file():
                shutil.copyfile(file, draft / file.name)
        (draft / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
        subprocess.run(
            [str(python), __file__, str(draft)],
            stdin=subprocess.DEVNULL,
            check=True,
            env={**os.environ, "HF_HUB_OFFLINE": "1"},
        )
        draft.chmod(0o755)
        try:
            draft.rename(model)
        except OSError:
            # Somebody else made the same model meanwhile; theirs is as good.
            if not model.is_dir():
                raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return model


def write_model(directory: Path) -> None:
    """Write config.json, generation_config.json and the weights beside the tokenizer in `directory`."""
    import torch
    from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(directory)
    torch.manual_seed(0)
    config = Qwen2Config(
        # Ids may have gaps: the largest one decides, not the number of entries.
        vocab_size=max(tokenizer.get_vocab().values()) + 1,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=MAX_POSITION_EMBEDDINGS,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    Qwen2ForCausalLM(config).to(torch.bfloat16).save_pretrained(directory)


if __name__ == "__main__":
    write_model(Path(sys.argv[1]))
