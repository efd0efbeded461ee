"""A small language model made in seconds: short stories about names and animals, learned by a GPT-2.

The stories repeat their names, so the model has something to look back for. No file is fetched.
"""

import random
from pathlib import Path

import numpy as np
import torch

NAMES = ("Lily", "Tom", "Ben", "Mia", "Sue", "Max")
GIRLS = ("Lily", "Mia", "Sue")
ANIMALS = ("cat", "dog", "bird", "fish")
PLACES = ("park", "garden", "house", "lake")
WORDS = (
    "<s>", ".", ",", *NAMES, *ANIMALS, *PLACES, "Once", "there", "was", "a", "girl", "boy", "named", "saw",
    "the", "in", "liked", "and", "She", "He", "wanted", "to", "play", "with", "went", "home", "said", "hello",
    "again",
)  # fmt: skip


def story(random_source: random.Random) -> list[str]:
    """One story: who, what was seen where, and the name again."""
    name = random_source.choice(NAMES)
    animal, place = random_source.choice(ANIMALS), random_source.choice(PLACES)
    kind, pronoun = ("girl", "She") if name in GIRLS else ("boy", "He")
    return (
        f"<s> Once there was a {kind} named {name} . {pronoun} went to the {place} and saw a {animal} . "
        f"{name} liked the {animal} . {pronoun} wanted to play with the {animal} in the {place} . "
        f"{name} said hello ."
    ).split()


def make(folder: str | Path, steps: int = 150, seed: int = 0) -> Path:
    """Train the model and write it with its tokenizer and its data, tokens.uint16."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import GPT2Config, GPT2LMHeadModel

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(seed)
    source = random.Random(seed)
    number = {word: k for k, word in enumerate(WORDS)}
    stories = [[number[word] for word in story(source)] for _ in range(600)]
    tokens = torch.tensor(stories)  # all stories have the same length
    config = GPT2Config(
        vocab_size=len(WORDS), n_positions=tokens.shape[1], n_embd=32, n_layer=2, n_head=4,
        bos_token_id=0, eos_token_id=0, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    model = GPT2LMHeadModel(config)
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    for _ in range(steps):
        batch = tokens[torch.randint(len(tokens), (32,))]
        loss = model(input_ids=batch, labels=batch).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval().save_pretrained(folder)
    tokenizer = Tokenizer(models.WordLevel(number, unk_token="."))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "unk_token": "."}\n'
    )
    tokens.numpy().astype(np.uint16).tofile(folder / "tokens.uint16")
    return folder
