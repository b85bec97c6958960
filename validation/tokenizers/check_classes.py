#!/usr/bin/env python3
"""Classes of transformers that build their pipeline by tokenizer_config.json, and take the vocabulary of tokenizer.json alone: their tokens.

    TESSERA=build/host/tessera check_classes.py           beside pipelines that are built here with the tokenizers package
    TESSERA=build/host/tessera check_classes.py --peer    beside AutoTokenizer: drawn configurations, 20 texts each

TESSERA_TEST_FULL=1: 200 of these and not 30. Exit status: 0 all agree, 1 not, 77 when a package is not installed.
"""

import json
import os
import random
import sys
import tempfile

try:
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
    if "--peer" in sys.argv:
        os.environ["HF_HUB_OFFLINE"] = "1"
        from transformers import AutoTokenizer, logging
        logging.set_verbosity_error()
except ImportError as error:
    print(f"skipped: {error}; run scripts/setup --tokenizers, or --peer", file=sys.stderr)
    sys.exit(77)

from make_tokenizers import KINDS, QWEN_SPLIT, make
from program import fail, run, write_lines
from token_files import read

PIECES = ["Hello", " world", "naïve café", "Привет", "你好，世界。", "😀", " ", "  ", "   three", "\t", "\n", "\n\n", "\u00a0", "e\u0301", "12345", "3.14", "don't", "I'LL",
          "<|endoftext|>", "<unk>", "<bos>", "<eos>", "<pad>", "<mask>", "<|padding|>", "<UNK>", "<BOS_TOKEN>", "<PAD>", "<CLS>", "<SEP>", "<MASK_TOKEN>", "<FILL_ME>", "▁<PRE>",
          "<|im_start|>", "<|im_end|>", "<|eot_id|>", "<s>", "</s>", "▁", "Ġ", "<0x0A>", "aqwxb", "!?!?", "    return", "<|turn|>"]
ADDED = ["<|turn|>", "qwx", "  "]
# What classes have by themselves, in the order in which it gets numbers where a vocabulary lacks it.
OF_CLASS = {"LlamaTokenizer": ["<s>", "</s>", "<unk>"], "GPT2Tokenizer": ["<|endoftext|>"], "GPTNeoXTokenizer": ["<|endoftext|>", "<|padding|>"], "Qwen2Tokenizer": ["<|endoftext|>"],
            "CohereTokenizer": ["<BOS_TOKEN>", "<|END_OF_TURN_TOKEN|>", "<UNK>", "<SEP>", "<PAD>", "<CLS>", "<MASK_TOKEN>"],
            "CodeLlamaTokenizer": ["<s>", "</s>", "<unk>", "▁<PRE>", "▁<MID>", "▁<SUF>", "▁<EOT>", "<FILL_ME>"]}


def texts(draw, count):
    return ["".join(draw.choice(PIECES) for _ in range(draw.randint(1, 12))) for _ in range(count)]


def write(folder, kind, config, model=None, added=()):
    """A tokenizer of a kind with more tokens, and what its configuration says in the place of its own."""
    make(kind, folder)
    path = os.path.join(folder, "tokenizer.json")
    with open(path, encoding="utf-8") as file:
        read_back = json.load(file)
    number = 1 + max([*read_back["model"]["vocab"].values(), *(one["id"] for one in read_back["added_tokens"])])
    for k, (text, more) in enumerate(added):
        read_back["added_tokens"].append({"id": number + k, "content": text, "single_word": False, "lstrip": False, "rstrip": False, **more})
    with open(path, "w", encoding="utf-8") as file:
        json.dump(read_back, file)
    path = os.path.join(folder, "tokenizer_config.json")
    with open(path, encoding="utf-8") as file:
        own = json.load(file)
    with open(path, "w", encoding="utf-8") as file:
        json.dump({key: value for key, value in {**own, "tokenizer_class": None, **config}.items() if value is not None}, file)
    if model:
        with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
            json.dump(model, file)
    return read_back


def tokens(folder, all_texts):
    """Those of the program without the end of a document, and what it said."""
    source, out = folder + ".jsonl", folder + "-out"
    write_lines(source, ({"text": text} for text in all_texts))
    status, _, said = run("tokenize", "--tokenizer", folder, source, out, "--workers", "1")
    if status:
        return None, None, said
    documents, attributes = read(out + "/train.h5")
    return [ids for ids, _ in documents], attributes["end_token"], said


def compare(folder, all_texts, encode, what, may_refuse=False):
    ours, end, said = tokens(folder, all_texts)
    if ours is None and may_refuse and ("not all bytes have a token" in said or "cannot tokenize" in said):
        return None
    if ours is None:
        fail(f"{what}: {said}")
    for text, ids in zip(all_texts, ours, strict=True):
        theirs = encode(text)
        if ids != (theirs if theirs and theirs[-1] == end else theirs + [end]):
            fail(f"{what}: {text!r} became {ids}, and is {theirs}\n{said}")
    return said


def built(read_back, normalizer, before, decoder, **options):
    """The file's vocabulary and added tokens with another pipeline."""
    merges = [tuple(pair if isinstance(pair, list) else pair.split(" ")) for pair in read_back["model"]["merges"]]
    tokenizer = Tokenizer(models.BPE(vocab=read_back["model"]["vocab"], merges=merges, **options))
    tokenizer.normalizer, tokenizer.pre_tokenizer, tokenizer.decoder = normalizer, before, decoder
    for one in sorted(read_back["added_tokens"], key=lambda one: one["id"]):
        parts = {key: value for key, value in one.items() if key not in ("id", "content")}
        tokenizer.add_tokens([AddedToken(one["content"], **parts)])
    tokenizer.post_processor = Tokenizer.from_str(json.dumps(read_back)).post_processor
    return tokenizer


def with_tokens_of(name, tokenizer, own):
    """Those of its class that the file names no other for; CodeLlama's puts its first one before a text, and nothing else."""
    named = {kind: own.get(kind) for kind in ("bos_token", "eos_token", "unk_token", "pad_token")}
    usual = {"bos_token": ("<s>", "<BOS_TOKEN>"), "eos_token": ("</s>", "<|END_OF_TURN_TOKEN|>"), "unk_token": ("<unk>", "<UNK>"), "pad_token": ("<PAD>", "<|padding|>")}
    for token in OF_CLASS[name]:
        kind = next((kind for kind, tokens in usual.items() if token in tokens), None)
        tokenizer.add_tokens([AddedToken(named.get(kind) or token, special=True)])
    if name == "CodeLlamaTokenizer":
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))])
    return tokenizer


def metaspace(scheme):
    return pre_tokenizers.Metaspace(replacement="▁", prepend_scheme=scheme, split=False)


def check_alone(folder):
    of_pieces = {"fuse_unk": True, "byte_fallback": True}
    level = decoders.ByteLevel()
    split = pre_tokenizers.Split(Regex(QWEN_SPLIT), "isolated")
    of_level = lambda space, regex=True: pre_tokenizers.ByteLevel(add_prefix_space=space, use_regex=regex)  # noqa: E731
    added = [("<|turn|>", {"normalized": False, "special": True}), ("qwx", {"normalized": True, "special": False}), ("  ", {"normalized": False, "special": False})]
    cases = [
        ("llama2", {"tokenizer_class": "LlamaTokenizer", "add_prefix_space": False}, None, metaspace("never"), of_pieces),
        ("llama2", {"tokenizer_class": "LlamaTokenizer", "legacy": True}, None, metaspace("always"), of_pieces),
        ("llama2", {"tokenizer_class": "LlamaTokenizerFast", "legacy": False}, None, metaspace("first"), of_pieces),
        ("llama2", {"tokenizer_class": "CodeLlamaTokenizer"}, None, metaspace("first"), {**of_pieces, "unk_token": "<unk>"}),
        ("mistral", {"tokenizer_class": "LlamaTokenizer", "add_prefix_space": False}, None, metaspace("never"), of_pieces),
        ("gpt2", {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": True}, None, of_level(True), {}),
        ("gpt2", {"tokenizer_class": "GPTNeoXTokenizerFast"}, normalizers.NFC(), of_level(False), {}),
        ("qwen", {"tokenizer_class": "Qwen2Tokenizer", "add_prefix_space": True}, normalizers.NFC(), pre_tokenizers.Sequence([split, of_level(True, False)]), {}),
        ("gpt2", {"tokenizer_class": "CohereTokenizerFast"}, normalizers.NFC(), pre_tokenizers.Sequence([pre_tokenizers.Digits(True), of_level(False)]), {}),
    ]
    draw = random.Random(5)
    for k, (kind, config, normalizer, before, options) in enumerate(cases):
        at = os.path.join(folder, f"case{k}")
        right = built(write(at, kind, config, added=added), normalizer, before, level, **options)
        with open(at + "/tokenizer_config.json", encoding="utf-8") as file:
            right = with_tokens_of(config["tokenizer_class"].removesuffix("Fast"), right, json.load(file))
        said = compare(at, ["Hello world", "x   three", "aqwxb", *texts(draw, 60)], lambda text: right.encode(text).ids, f"{kind} {config}")
        if f"as {config['tokenizer_class'].removesuffix('Fast')} of transformers builds" not in said:
            fail(f"{kind} {config}: nothing was said of it: {said}")
    # What is as the class builds it stays as it stands, and so does what no class builds, or a model's kind has otherwise.
    quiet = [("gpt2", {"tokenizer_class": "GPT2Tokenizer"}, {}), ("llama3", {"tokenizer_class": "LlamaTokenizer"}, {}),
             ("llama2", {"tokenizer_class": "PreTrainedTokenizerFast", "add_prefix_space": False}, {}), ("llama2", {"add_prefix_space": False}, {}),
             ("llama2", {"tokenizer_class": "LlamaTokenizer", "add_prefix_space": False}, {"model_type": "phi3"})]
    for k, (kind, config, model) in enumerate(quiet):
        at = os.path.join(folder, f"quiet{k}")
        write(at, kind, config, model)
        stands = Tokenizer.from_file(at + "/tokenizer.json")
        said = compare(at, texts(draw, 40), lambda text: stands.encode(text).ids, f"{kind} {config} {model}")
        if "of transformers builds" in said:
            fail(f"{kind} {config} {model}: {said}")
    print(f"{len(cases)} pipelines of classes, {len(quiet)} files that stand as they are")
    check_digests(folder)


def check_digests(folder):
    """Of one tokenizer.json, configurations of the same digest make the same tokens."""
    draw, by_digest = random.Random(7), {}
    asked = [" Hello  world", "x <pad> <s>y", "<|turn|>ab<unk>", "   three\n 7", *texts(draw, 12)]
    count = 200 if os.environ.get("TESSERA_TEST_FULL") else 24
    for k in range(count):
        at = os.path.join(folder, f"digest{k}")
        keys = "add_prefix_space", "legacy", "add_bos_token", "split_special_tokens"
        flags = {key: draw.random() < 0.5 for key in keys if draw.random() < 0.4}
        named = {key: draw.choice(["<pad>", "<s>", "<|turn|>"]) for key in ("pad_token", "mask_token") if draw.random() < 0.3}
        kind = draw.choice(TYPES)
        of_class = {"tokenizer_class": draw.choice(CLASSES[:3] + CLASSES[8:9] + CLASSES[-2:])}
        write(at, "llama2", {**of_class, **flags, **named}, {"model_type": kind} if kind else None)
        ids, _, said = tokens(at, asked)
        if ids is not None:
            by_digest.setdefault(read(f"{at}-out/train.h5")[1]["tokenizer_xxh3"], []).append((ids, flags | named, kind))
    for digest, found in by_digest.items():
        for ids, config, kind in found[1:]:
            if ids != found[0][0]:
                fail(f"{found[0][1:]} and {config, kind} have the digest {digest} and other tokens")
    if not 3 < len(by_digest) < sum(map(len, by_digest.values())):
        fail(f"{count} configurations have {len(by_digest)} digests, so that nothing was compared")
    print(f"{count} configurations of one tokenizer.json have {len(by_digest)} digests, each with tokens of its own")


CLASSES = ["LlamaTokenizer", "LlamaTokenizerFast", "GemmaTokenizer", "GPT2Tokenizer", "GPT2TokenizerFast", "GPTNeoXTokenizer", "GPTNeoXTokenizerFast", "CohereTokenizer", "CodeLlamaTokenizer",
           "Qwen2Tokenizer", "Qwen2TokenizerFast", "PreTrainedTokenizerFast", None]
TYPES = [None, "llama", "mistral", "gemma2", "qwen2", "qwen3", "gpt2", "gpt_neox", "cohere", "phi3", "phi", "olmo2", "olmo", "granite", "deepseek_v3", "starcoder2", "smollm3"]


def check_beside_transformers(folder):
    draw, count, compared, refused = random.Random(int(os.environ.get("TESSERA_TEST_DRAW") or 1)), 200 if os.environ.get("TESSERA_TEST_FULL") else 30, 0, 0
    for k in range(count):
        at, kind = os.path.join(folder, f"drawn{k}"), draw.choice(list(KINDS))
        config = {key: draw.random() < 0.5 for key in ("add_bos_token", "add_eos_token", "add_prefix_space", "legacy") if draw.random() < 0.35}
        config |= {"tokenizer_class": draw.choice(CLASSES)}
        kind_of_model = draw.choice(TYPES)
        added = [(text, {"normalized": draw.random() < 0.5, "special": draw.random() < 0.4}) for text in draw.sample(ADDED, draw.randint(0, 3))]
        write(at, kind, config, {"model_type": kind_of_model} if kind_of_model else None, added)
        theirs = AutoTokenizer.from_pretrained(at)
        asked = [text for text in texts(draw, 20) if "<FILL_ME>" not in text or config["tokenizer_class"] != "CodeLlamaTokenizer"]  # there it is two texts
        # A vocabulary of bytes in a class of pieces has no token for some texts: both say so.
        said = compare(at, asked, lambda text: theirs(text)["input_ids"], f"{kind} {config} {kind_of_model}", may_refuse=True)
        compared, refused = compared + (said is not None), refused + (said is None)
    print(f"{compared} drawn configurations agree with AutoTokenizer, {refused} are refused")


with tempfile.TemporaryDirectory() as where:
    check_beside_transformers(where) if "--peer" in sys.argv else check_alone(where)
