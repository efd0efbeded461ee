"""The families of causal language models that are read."""

FAMILIES = {
    "gpt2": "gpt2.gpt2", "gpt_bigcode": "gpt2.gpt2", "gpt_neo": "gpt2.gpt_neo",
    "gpt_neox": "gpt_neox.gpt_neox", "gptj": "gpt_neox.gptj", "codegen": "gpt_neox.gptj", "opt": "gpt2.opt",
    "llama": "llama.llama", "mistral": "llama.llama", "ministral": "llama.llama", "ministral3": "llama.llama",
    "qwen2": "llama.llama", "qwen3": "llama.llama", "phi": "llama.llama", "phi3": "llama.llama",
    "gemma": "llama.gemma", "gemma2": "llama.gemma", "gemma3_text": "llama.gemma", "olmo": "llama.llama",
    "olmo2": "llama.llama", "olmo3": "llama.llama", "smollm3": "llama.llama", "stablelm": "llama.llama",
    "starcoder2": "llama.llama", "granite": "llama.llama", "falcon": "gpt_neox.falcon",
    "cohere": "llama.llama", "cohere2": "llama.llama", "glm": "llama.llama", "glm4": "llama.llama",
    "helium": "llama.llama", "nemotron": "llama.llama", "exaone4": "llama.llama", "ernie4_5": "llama.llama",
    "seed_oss": "llama.llama", "arcee": "llama.llama", "apertus": "llama.llama",
}  # fmt: skip
"""The file and the function that reads each of transformers' model types."""
