"""Make a tiny language model that vLLM serves: real code paths, no download, no sense in what it says.

    python scripts/tiny_model.py FOLDER

Qwen3 with 3.4 M parameters in float32, seeded, so that every machine makes the same one. Its KV cache takes
4 layers x 2 (key, value) x 2 heads x 64 numbers x 4 B = 4096 B a token. The output rows of the end token, of the other
special tokens and of every token that is not printable ASCII are zero: greedy text is plain ASCII and ends only by
max_tokens or stop, never by chance.
"""

import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

SEED = 20
VOCABULARY = 512
CONTEXT_TOKENS = 8192
SPECIAL = ["<|end|>", "<|start|>", "<|pad|>"]
WORDS = (
    "the of and to in a is that for it as was with be by on not he his but at are this have from or had an they "
    "which one you were all her she there would their we him been has when who will no more if out so up said "
    "what its about than into them can only other time new some could these two may first then do any like my now "
    "over such our man me even most made after also did many off before must well back through years much where "
    "your way down should because long each just state those people too mr how little good world make very year "
    "still see work between life queue request cluster instance token engine price second cost cache block model "
    "prompt answer"
)
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "<|start|>{{ message['role'] }}\n{{ message['content'] }}"
    "{% if not (loop.last and continue_final_message) %}<|end|>\n{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE: 256 bytes, the merges of WORDS, three special tokens. Any text goes through and comes back."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=SPECIAL,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator([WORDS], trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=SPECIAL[0], pad_token=SPECIAL[2])
    fast.chat_template = CHAT_TEMPLATE
    fast.model_max_length = CONTEXT_TOKENS
    return fast


def make_model(tokenizer: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    """Random weights, wide enough spread that different prompts get different answers."""
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=CONTEXT_TOKENS,
        tie_word_embeddings=False,
        initializer_range=0.08,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        dtype="float32",
    )
    torch.manual_seed(SEED)
    model = Qwen3ForCausalLM(config).float()
    with torch.no_grad():
        for token in range(VOCABULARY):
            text = tokenizer.decode([token])
            if token in tokenizer.all_special_ids or not (text.isascii() and text.isprintable() and text):
                model.lm_head.weight[token] = 0.0
    return model


def main(folder: Path) -> None:
    """Write config, weights and tokenizer to `folder`."""
    tokenizer = make_tokenizer()
    model = make_model(tokenizer)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    print(f"{folder}: {sum(p.numel() for p in model.parameters()) / 1e6:.2f} M parameters, {len(tokenizer)} tokens")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
