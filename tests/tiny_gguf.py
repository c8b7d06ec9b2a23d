"""A model of a few hundred kilobytes that llama.cpp loads in a tenth of a second: random weights, the same every time.

`python -m tests.tiny_gguf OUT.gguf`. It never emits a token that is no text: bytes that form no UTF-8 make llama.cpp
answer with an error.
"""

from __future__ import annotations

import sys
from pathlib import Path

import gguf
import numpy as np

BYTES = 256
START, END = "<|im_start|>", "<|im_end|>"
LETTERS = "▁etaoinshrdlcumwfgypbvkjxqz0123456789.,:;!?'\"()-\nABCDEFGHIJKLMNOPQRSTUVWXYZ"
TEMPLATE = (
    "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)
WIDTH, LAYERS, HEADS, KV_HEADS, FEED_FORWARD, VOCABULARY = 64, 2, 4, 2, 128, 512


def vocabulary() -> list[tuple[str, gguf.TokenType]]:
    """Control tokens, bytes, letters, and pairs of letters up to the full count; any text has tokens."""
    tokens = [("<unk>", gguf.TokenType.UNKNOWN), ("<s>", gguf.TokenType.CONTROL), ("</s>", gguf.TokenType.CONTROL)]
    tokens += [(f"<0x{byte:02X}>", gguf.TokenType.BYTE) for byte in range(BYTES)]
    tokens += [(START, gguf.TokenType.CONTROL), (END, gguf.TokenType.CONTROL)]
    pieces = [*LETTERS, *(a + b for a in LETTERS[:12] for b in LETTERS[1:20])]
    return (tokens + [(piece, gguf.TokenType.NORMAL) for piece in pieces])[:VOCABULARY]


def write(path: Path, *, context_tokens: int = 8192, seed: int = 1) -> Path:
    """Write the model; equal arguments give equal bytes."""
    random = np.random.default_rng(seed)
    tokens = vocabulary()

    def weights(*shape: int, scale: float) -> np.ndarray:
        return (random.standard_normal(shape) * scale).astype(np.float16)

    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_name("tiny")
    writer.add_context_length(context_tokens)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_vocab_size(len(tokens))
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([text.encode() for text, _ in tokens])
    writer.add_token_scores([-float(number) for number in range(len(tokens))])
    writer.add_token_types([int(kind) for _, kind in tokens])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id([text for text, _ in tokens].index(END))
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(True)
    writer.add_add_space_prefix(False)
    writer.add_chat_template(TEMPLATE)
    output = weights(len(tokens), WIDTH, scale=0.5)
    output[[number for number, (_, kind) in enumerate(tokens) if kind != gguf.TokenType.NORMAL]] = 0
    writer.add_tensor("token_embd.weight", weights(len(tokens), WIDTH, scale=1.0))
    writer.add_tensor("output.weight", output)
    writer.add_tensor("output_norm.weight", np.ones(WIDTH, dtype=np.float32))
    kv_width = KV_HEADS * WIDTH // HEADS
    for layer in range(LAYERS):
        for name, rows, columns in (
            ("attn_q", WIDTH, WIDTH),
            ("attn_k", kv_width, WIDTH),
            ("attn_v", kv_width, WIDTH),
            ("attn_output", WIDTH, WIDTH),
            ("ffn_gate", FEED_FORWARD, WIDTH),
            ("ffn_up", FEED_FORWARD, WIDTH),
            ("ffn_down", WIDTH, FEED_FORWARD),
        ):
            writer.add_tensor(f"blk.{layer}.{name}.weight", weights(rows, columns, scale=columns**-0.5))
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{name}.weight", np.ones(WIDTH, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


if __name__ == "__main__":
    write(Path(sys.argv[1]))
