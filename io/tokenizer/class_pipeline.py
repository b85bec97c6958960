# What transformers makes of a tokenizer.json whose class builds its pipeline itself, after model_files.py, which is one program with it. The classes are
# those of tokenizer_class.cpp, which says which one it is; tokenizer.json gives them the vocabulary alone.

QWEN_SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


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


def as_its_class_builds(path, config, name):
    """Where the class of this name builds its pipeline: the text of tokenizer.json with it ("" where that is as it stands), and a word on what changed."""
    built = pipeline_of(name, config)
    with open(path, "rb") as file:
        read = json.loads(file.read()) if built else None
    learnt = read.get("model") if isinstance(read, dict) else None
    if not isinstance(learnt, dict) or learnt.get("type") != "BPE":
        return "", ""
    *parts, options = built
    named = dict(zip(("normalizer", "pre_tokenizer", "decoder"), parts))
    changed = [key for key, part in named.items() if not same_part(read.get(key), part, key)]
    options |= {"dropout": None, "ignore_merges": False}
    changed += [f"model.{key}" for key, value in options.items() if (learnt.get(key) or None) != (value or None)]
    if name == "GPTNeoXTokenizer" and (read.get("post_processor") or {}).get("type") not in (None, "ByteLevel"):
        named["post_processor"] = None  # it puts nothing around a text, whatever the file says
        changed.append("post_processor")
    if name == "CodeLlamaTokenizer":
        named["post_processor"] = None  # the worker's, once its tokens have numbers
        changed.append("post_processor")
    learnt.update(options, continuing_subword_prefix=None, end_of_word_suffix=None)
    text = json.dumps({**read, **named}, ensure_ascii=False) if changed else ""
    return text, f"{', '.join(changed)} as {name} of transformers builds them, and not as tokenizer.json has them"


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
