"""Small tokenizers of the kinds that models have, trained here on a text that is written here: nothing of a model's own files."""

import json
import os
import random

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

GPT4_SPLIT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN_SPLIT = GPT4_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")
WORDS = ("the of and to in is that it was for on are as with his they at be this from have or by one had not but what all were when we there can an your which "
         "their said if do will each about how up out them then she many some so these would other into has more two like him see time could no make than first "
         "naïve café über straße élan Москва привет 你好 世界 日本語 العربية हिन्दी 😀 👩‍🚀 x=1; for(i) {return} 3.14159 2024 don't we'll I'm").split()


def corpus(lines=4000, seed=1):
    draw = random.Random(seed)
    for _ in range(lines):
        yield " ".join(draw.choice(WORDS) for _ in range(draw.randint(1, 25))) + draw.choice([".", "!", "\n", "\n\n", "\t", "  "])


def byte_level(split, special, prefix=None, normalizer=None):
    """GPT-2's kind where `split` is none, else that of Llama 3 and Qwen. `prefix` is put before each text."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=split is not None))
    tokenizer.normalizer = normalizer
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split is None)
    tokenizer.pre_tokenizer = level if split is None else pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(split), "isolated"), level])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(corpus(), trainers.BpeTrainer(vocab_size=700, special_tokens=special, show_progress=False,
                                                                initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    if prefix:
        template = processors.TemplateProcessing(single=f"{prefix} $A", special_tokens=[(prefix, tokenizer.token_to_id(prefix))])
        tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=True), template])
    return tokenizer


def sentence_piece(metaspace):
    """Llama 2's kind: blanks are letters, what is unknown becomes its bytes. With `metaspace` in the form that newer files have."""
    special = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first", split=False)
    words = Tokenizer(models.BPE(unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Metaspace()
    words.train_from_iterator((line for line in corpus() if "😀" not in line),
                              trainers.BpeTrainer(vocab_size=900, special_tokens=special, show_progress=False, limit_alphabet=80))
    learnt = json.loads(words.to_str())["model"]
    tokenizer.model = models.BPE(vocab=learnt["vocab"], merges=[tuple(pair) for pair in learnt["merges"]], unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    if not metaspace:
        tokenizer.pre_tokenizer = None
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    tokenizer.add_special_tokens([AddedToken(name, normalized=False, special=True) for name in special[:3]])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))])
    return tokenizer


CHATML = ("{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}"
          "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")
HEADERS = ("{{- bos_token }}{%- for message in messages %}{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim + "
           "'<|eot_id|>' }}{%- endfor %}{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}")
INST = ("{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system = '<<SYS>>\\n' + messages[0]['content'] + '\\n<</SYS>>\\n\\n' %}"
        "{% else %}{% set loop_messages = messages %}{% set system = '' %}{% endif %}{% for message in loop_messages %}"
        "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
        "{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + (system if loop.index0 == 0 else '') + message['content'].strip() + ' [/INST]' }}"
        "{% elif message['role'] == 'assistant' %}{{ ' ' + message['content'].strip() + ' ' + eos_token }}{% endif %}{% endfor %}")
# The reasoning of earlier turns is left out, so a conversation does not begin with the text of a shorter one; marks say what the model wrote.
MARKED = ("{%- for message in messages %}{{- '<|im_start|>' + message.role + '\\n' }}{%- if message.role == 'assistant' %}{% generation %}"
          "{{- (message.content if loop.last else message.content.split('</think>')[-1]) + '<|im_end|>' }}{% endgeneration %}{%- else %}"
          "{{- message.content + '<|im_end|>' }}{%- endif %}{{- '\\n' }}{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}")
UNMARKED = MARKED.replace("{% generation %}", "").replace("{% endgeneration %}", "")

# name: (how it is made, end token, beginning token, chat template)
KINDS = {
    "gpt2": (lambda: byte_level(None, ["<|endoftext|>"]), "<|endoftext|>", "<|endoftext|>", None),
    "smollm": (lambda: byte_level(None, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]), "<|im_end|>", "<|im_start|>", CHATML),
    "llama3": (lambda: byte_level(GPT4_SPLIT, ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"],
                                  "<|begin_of_text|>"), "<|eot_id|>", "<|begin_of_text|>", HEADERS),
    "qwen": (lambda: byte_level(QWEN_SPLIT, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], normalizer=normalizers.NFC()), "<|im_end|>", None, MARKED),
    "llama2": (lambda: sentence_piece(False), "</s>", "<s>", INST),
    "mistral": (lambda: sentence_piece(True), "</s>", "<s>", INST),
}


def make(name, folder):
    """Writes the files of KINDS[name] into a new folder; returns the tokenizer."""
    build, end, begin, template = KINDS[name]
    os.makedirs(folder)
    tokenizer = build()
    tokenizer.save(os.path.join(folder, "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": end, **({"bos_token": begin} if begin else {}),
              **({"chat_template": template} if template else {})}
    with open(os.path.join(folder, "tokenizer_config.json"), "w", encoding="utf-8") as file:
        json.dump(config, file)
    return tokenizer
