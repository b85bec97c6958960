# What transformers makes of a tokenizer.json whose class builds its pipeline itself, after model_files.py, which is one program with it. The classes and which
# model has which are those of transformers 5.24 (models/*/tokenization_*.py, models/auto/tokenization_auto.py); tokenizer.json gives them the vocabulary alone.

QWEN_SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")

# The class of a kind of model, which counts where tokenizer_config.json names none; FROM_FILE: tokenizer.json as it stands.
FROM_FILE = "TokenizersBackend"
CLASS_OF_MODEL = {
    **dict.fromkeys("gemma gemma2 gemma3 gemma3_text gemma3n gemma3n_text recurrent_gemma shieldgemma2 t5gemma".split(), "GemmaTokenizer"),
    **dict.fromkeys("codegen dbrx gpt2 gpt_neo gptj jais2 opt phi starcoder2".split(), "GPT2Tokenizer"),
    **dict.fromkeys("internvl qwen2 qwen2_5_omni qwen2_5_vl qwen2_audio qwen2_moe qwen2_vl qwen3 qwen3_moe qwen3_next qwen3_omni_moe qwen3_vl qwen3_vl_moe".split(),
                    "Qwen2Tokenizer"),
    **dict.fromkeys("falcon_mamba gpt_neox mamba mamba2 mpt olmo olmoe rwkv xlstm".split(), "GPTNeoXTokenizer"),
    **dict.fromkeys("aya_vision cohere cohere2".split(), "CohereTokenizer"),
    "code_llama": "CodeLlamaTokenizer",
    **dict.fromkeys(("aria arctic chatlm ernie4_5 ernie4_5_moe flex_olmo fuyu glm glm4 glm4_moe glm4_moe_lite glm4v glm4v_moe gpt_bigcode granite granitemoe "
                     "granitemoehybrid granitemoeshared h2ovl_chat hyperclovax hyperclovax_vlm internlm2 internlm3 iquestcoder jamba kimi_k25 kimi_linear llava "
                     "llava_next mimo_v2_flash minicpm3 minicpmv minimax_m2 ministral ministral3 mistral mistral3 mistral_large4 mixtral modernbert modernbert-decoder "
                     "molmo molmo2 nemotron olmo2 olmo3 olmo_hybrid opencua openvla paddleocr_vl persimmon phi3 phi3_v phimoe pixtral smolvlm stablelm step3_vl "
                     "vipllava voxtral").split(), FROM_FILE),
}
# Of these the class that files name is not believed.
WRONGLY_NAMED = frozenset("qwen2 qwen3_5 qwen3_5_moe qwen3_5_moe_text qwen4_exp".split())


# Special tokens of a class where tokenizer_config.json names none, and more of some class. Those that a vocabulary has not get the numbers after its last.
DEFAULT_TOKENS = {
    "LlamaTokenizer": {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"},
    "CodeLlamaTokenizer": {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "prefix_token": "▁<PRE>", "middle_token": "▁<MID>", "suffix_token": "▁<SUF>",
                           "eot_token": "▁<EOT>", "fill_token": "<FILL_ME>"},
    "GemmaTokenizer": {"unk_token": "<unk>", "bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>", "mask_token": "<mask>"},
    "GPT2Tokenizer": {"unk_token": "<|endoftext|>", "bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"},
    "Qwen2Tokenizer": {"unk_token": "<|endoftext|>", "eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>"},
    "GPTNeoXTokenizer": {"unk_token": "<|endoftext|>", "bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>", "pad_token": "<|padding|>"},
    "CohereTokenizer": {"unk_token": "<UNK>", "bos_token": "<BOS_TOKEN>", "eos_token": "<|END_OF_TURN_TOKEN|>", "pad_token": "<PAD>", "cls_token": "<CLS>",
                        "sep_token": "<SEP>", "mask_token": "<MASK_TOKEN>"},
}


# What a class puts before each text, whatever tokenizer.json has around one.
FRAME_OF_CLASS = {"CodeLlamaTokenizer": "bos_token"}


def class_of(config, model, byte_level):
    """The class that transformers takes: `model` is config.json, `byte_level` whether tokenizer.json is of bytes."""
    mapped = config.get("auto_map")
    if isinstance(mapped, list) or isinstance(mapped, dict) and "AutoTokenizer" in mapped:
        return FROM_FILE
    kind, named = model.get("model_type"), config.get("tokenizer_class") or model.get("tokenizer_class")
    of_kind = CLASS_OF_MODEL.get(kind) if isinstance(kind, str) else None
    if not isinstance(named, str):
        return of_kind or FROM_FILE
    named = named.removesuffix("Fast")
    if named == "LlamaTokenizer" and byte_level and kind not in WRONGLY_NAMED:
        return FROM_FILE
    if of_kind == FROM_FILE:
        return FROM_FILE
    return of_kind if of_kind and kind in WRONGLY_NAMED else named


def pipeline_of(name, config):
    """Normalizer, pre_tokenizer, decoder and the model's options, of a class that builds them; None of another."""
    space = config.get("add_prefix_space")
    replaced, bytes_, fused = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}
    strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    level = {"type": "ByteLevel", "add_prefix_space": bool(space), "trim_offsets": True, "use_regex": True}
    of_bytes = {"unk_token": None, "fuse_unk": False, "byte_fallback": False}
    if name in ("LlamaTokenizer", "CodeLlamaTokenizer"):
        space, of_code = space is None or bool(space), name == "CodeLlamaTokenizer"
        always = bool(config.get("legacy", False)) and not of_code
        scheme = "never" if not space else "always" if always else "first"
        return (None, {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": False},
                {"type": "Sequence", "decoders": [replaced, bytes_, fused, *([strip] if space or of_code else [])]},
                {"unk_token": special_token(config, "unk_token", "tokenizer_config.json") or "<unk>" if of_code else None, "fuse_unk": True, "byte_fallback": True})
    if name == "GemmaTokenizer":
        return ({"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
                {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False},
                {"type": "Sequence", "decoders": [replaced, bytes_, fused]},
                {"unk_token": special_token(config, "unk_token", "tokenizer_config.json") or "<unk>", "fuse_unk": True, "byte_fallback": True})
    if name == "GPT2Tokenizer":
        return None, level, {**level, "add_prefix_space": True}, of_bytes
    if name == "GPTNeoXTokenizer":
        return {"type": "NFC"}, level, {**level, "add_prefix_space": True}, of_bytes
    if name == "CohereTokenizer":
        return ({"type": "NFC"}, {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, level]}, level, of_bytes)
    if name == "Qwen2Tokenizer":
        split = {"type": "Split", "pattern": {"Regex": QWEN_SPLIT}, "behavior": "Isolated", "invert": False}
        return ({"type": "NFC"}, {"type": "Sequence", "pretokenizers": [split, {**level, "use_regex": False}]}, {**level, "add_prefix_space": True}, of_bytes)
    return None


def has_byte_level(part):
    return isinstance(part, dict) and (part.get("type") == "ByteLevel" or any(map(has_byte_level, part.get("pretokenizers") or part.get("decoders") or [])))


def as_its_class_builds(path, config, model):
    """Where a class builds its pipeline: the text of tokenizer.json with it ("" where that is as it stands), a word on what changed, the special tokens that it has
    by itself, and the name of the one that it puts before a text."""
    with open(path, "rb") as file:
        read = json.loads(file.read())
    learnt = read.get("model") if isinstance(read, dict) else None
    if not isinstance(learnt, dict) or learnt.get("type") != "BPE":
        return "", "", {}, None
    name = class_of(config, model, has_byte_level(read.get("pre_tokenizer")) or has_byte_level(read.get("decoder")))
    built = pipeline_of(name, config)
    if built is None:
        return "", "", {}, None
    *parts, options = built
    named = dict(zip(("normalizer", "pre_tokenizer", "decoder"), parts))
    changed = [key for key, part in named.items() if not same_part(read.get(key), part, key)]
    options |= {"dropout": None, "ignore_merges": False}
    changed += [f"model.{key}" for key, value in options.items() if (learnt.get(key) or None) != (value or None)]
    if name == "GPTNeoXTokenizer" and (read.get("post_processor") or {}).get("type") not in (None, "ByteLevel"):
        named["post_processor"] = None  # it puts nothing around a text, whatever the file says
        changed.append("post_processor")
    if name in FRAME_OF_CLASS:
        named["post_processor"] = None  # the worker's, once its tokens have numbers
        changed.append("post_processor")
    learnt.update(options, continuing_subword_prefix=None, end_of_word_suffix=None)
    text = json.dumps({**read, **named}, ensure_ascii=False) if changed else ""
    return text, f"{', '.join(changed)} as {name} of transformers builds them, and not as tokenizer.json has them", DEFAULT_TOKENS[name], FRAME_OF_CLASS.get(name)


def same_part(theirs, ours, key):
    """Files may leave out what is so anyway, and of a decoder of bytes nothing is read but that it is one."""
    if key == "decoder" and isinstance(theirs, dict) and theirs.get("type") == ours["type"] == "ByteLevel":
        return True
    if isinstance(ours, dict):
        usual = {"trim_offsets": ours.get("trim_offsets"), "use_regex": True}
        return isinstance(theirs, dict) and all(k == "trim_offsets" or same_part(theirs.get(k, usual.get(k)), v, k) for k, v in ours.items())
    if isinstance(ours, list):
        return isinstance(theirs, list) and len(theirs) == len(ours) and all(map(same_part, theirs, ours, [key] * len(ours)))
    return theirs == ours
