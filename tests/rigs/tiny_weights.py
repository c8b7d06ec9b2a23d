"""A whole GGUF file of a few kilobytes, written by the format's own library."""

from pathlib import Path

import gguf
import numpy as np


def write_tiny_gguf(path: Path, *, seed: int = 1, rows: int = 64) -> bytes:
    """The file's content; of no use to an engine, but whole."""
    numbers = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(128)
    writer.add_string("general.name", "tiny")
    writer.add_array("tokenizer.ggml.tokens", [f"token-{i}" for i in range(40)])
    writer.add_array("tokenizer.ggml.scores", [float(i) for i in range(40)])
    writer.add_add_bos_token(True)
    writer.add_tensor("token_embd.weight", numbers.random((rows, 64), dtype=np.float32))
    blocks = gguf.quantize(numbers.random((rows, 64), dtype=np.float32), gguf.GGMLQuantizationType.Q4_0)
    writer.add_tensor("output.weight", blocks, raw_dtype=gguf.GGMLQuantizationType.Q4_0)
    writer.add_tensor("norm.weight", numbers.random(7, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.read_bytes()
