"""Inputs of fuzz_tokenizer.py: a model's small files by name, and `asked.json`, which has what is asked of them; and how others are made of those."""
import copy
import json
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "tokenizers"))

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors  # noqa: E402

from make_tokenizers import KINDS  # noqa: E402

ASKED = {"end_token": "", "field": "", "texts": ["it's a text.\nof  two lines", "x=1; caf\u00e9 \u4e16\u754c \U0001f600", ""], "system": "Be brief.",
         "message": "Why?",
         "lines": ['{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "the answer"}]}',
                   '{"instruction": "say", "input": "more", "output": "so"}', '{"prompt": "2 + 2 =", "completion": "4", "id": 5, "history": [["1 + 1 =", "2"]]}']}
LONGEST = 1 << 18  # bytes of a file
VALUES = (None, True, False, 0, 1, 2, -1, 1.5, 300, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63, 2**64, 10**400, 1e308, float("nan"), float("inf"), "", "a", " ",
          "\n", "\u00e9",
          "\ud800", "\udfff x", "\x00", "\u2581", "\u0120", "\ufffd", "\ufdd0", "\x1b[2J", "<|endoftext|>", "</s>", "<s>", "<unk>", "[UNK]", "a" * 3000, "$A",
          "Ab", [], [[]], [0], {}, {"a": 1},
          "Sequence", "ByteLevel", "BPE", "WordPiece", "WordLevel", "Unigram", "Split", "Metaspace", "Whitespace", "Digits", "Punctuation", "Replace",
          "Prepend", "Strip", "Lowercase",
          "NFC", "NFKD", "Precompiled", "Nmt", "StripAccents", "BertNormalizer", "BertPreTokenizer", "TemplateProcessing", "BertProcessing",
          "RobertaProcessing", "ByteFallback", "Fuse",
          "CTC", "BPEDecoder", "UnicodeScripts", "CharDelimiterSplit", "FixedLength", "Removed", "Isolated", "MergedWithPrevious", "Contiguous", "first",
          "always", "never", "default",
          "eos_token", "bos_token", "unk_token", "chat_template", "eos_token_id", "content", "special", "lstrip", "rstrip", "dropout", "byte_fallback",
          "ignore_merges", "normalized",
          "(a+)+$", "(", "(?=", "\\p{L}", ".", "$", "^", "|", "(?:)", "\\s+(?!\\S)", "assistant", "user", "system")
SNIPPETS = ("{{", "}}", "{%", "%}", "{#", "#}", "{{ x }}", "{{ messages }}", "{{ messages[9].content }}", "{% for m in messages %}", "{% endfor %}",
            "{% if loop.first %}", "{% endif %}",
            "{% generation %}", "{% endgeneration %}", "{% set x = 1 %}", "{% macro f(x) %}", "{% endmacro %}", "{{ f(1) }}",
            "{% macro g(x) %}{{ g(x) }}{% endmacro %}{{ g(1) }}", "{% break %}",
            "{{ 9 ** (9 ** 9) }}", "{{ 'a' * 9999999999 }}", "{{ [0] * 999999999 }}", "{{ '%9999999999d' % 1 }}", "{{ 'a'.center(9999999999) }}",
            "{{ '{:9999999999}'.format(1) }}",
            "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "{{ '\\ud800' }}", "{{ raise_exception('\\ud800 \\n no') }}",
            "{{ raise_exception(1) }}",
            "{{ tools | tojson(indent=4) }}", "{{ bos_token }}", "{{ eos_token }}", "{{ namespace() }}", "{% include 'a' %}", "{% import 'a' as a %}",
            "{% extends 'a' %}", "{{ ''.__class__ }}",
            "{% set ns = namespace(x=2) %}{% for i in range(999) %}{% set ns.x = ns.x * ns.x %}{% endfor %}", "{{ messages | tojson }}", "{{ cycler }}",
            "{{ lipsum() }}", "{{ lipsum(n=99999) }}",
            "((((((((((", "\ufdd0", "\ufdd1", "\x00", "\n", " ", "{{ 1 / 0 }}", "{{ messages.append(1) }}", "{{ self }}", "{{ caller() }}",
            "{{ undefined.x.y }}", "{{ 10 ** 999 }}")
BYTES = (b"\xff", b"\x00", b"\xc3", b"\xef\xbb\xbf", b"\xed\xa0\x80", b"{", b"}", b"[", b"]", b'"', b"\\", b",", b":", b"\\ud800", b"1e999", b"NaN", b"-",
         b"[" * 3000, b'{"a":' * 3000, b"9" * 5000)


def parts():
    """Steps of a tokenizer, as tokenizer.json has them, by the key under which they stand."""
    pattern = Regex("(?i:'s|'t)|\\p{L}+|\\p{N}{1,3}|\\s+(?!\\S)|\\s+")
    made = {
        "normalizer": [normalizers.NFC(), normalizers.NFKD(), normalizers.Lowercase(), normalizers.Strip(), normalizers.StripAccents(),
                       normalizers.Prepend("\u2581"), normalizers.Nmt(),
                       normalizers.Replace(" ", "\u2581"), normalizers.Replace(Regex("\\s+"), " "), normalizers.Replace("a", "aa"),
                       normalizers.Replace("", "a"), normalizers.BertNormalizer()],
        "pre_tokenizer": [pre_tokenizers.ByteLevel(add_prefix_space=True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
                          pre_tokenizers.Whitespace(),
                          pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Digits(True), pre_tokenizers.Punctuation("removed"),
                          pre_tokenizers.CharDelimiterSplit("a"),
                          pre_tokenizers.UnicodeScripts(), pre_tokenizers.BertPreTokenizer(), pre_tokenizers.Metaspace(prepend_scheme="never"),
                          *(pre_tokenizers.Split(pattern, way) for way in ("isolated", "removed", "merged_with_next", "contiguous")),
                          pre_tokenizers.Split("\n", "merged_with_previous")],
        "decoder": [decoders.ByteLevel(), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 1), decoders.Replace("\u2581", " "),
                    decoders.WordPiece(), decoders.Metaspace(),
                    decoders.BPEDecoder(), decoders.CTC()],
        "post_processor": [processors.ByteLevel(), processors.BertProcessing(("a", 999), ("b", 0)), processors.RobertaProcessing(("a", 1), ("b", 10**6)),
                           processors.TemplateProcessing(single="a $A a", special_tokens=[("a", 7)]),
                           processors.TemplateProcessing(single="$A $A b", special_tokens=[("b", 2**31)])],
    }
    return {key: [json.loads(one.__getstate__()) for one in some] for key, some in made.items()}


PARTS = parts()
LISTS = {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers", "decoder": "decoders", "post_processor": "processors"}


def change_steps(tree, draw):
    """Another step of a tokenizer, alone or beside those that it has."""
    key = draw.choice(list(LISTS))
    step, now = copy.deepcopy(draw.choice(PARTS[key])), tree.get(key)
    if now is not None and draw.random() < 0.6:
        step = {"type": "Sequence", LISTS[key]: draw.choice(([now, step], [step, now], [step, step, now]))}
    tree[key] = None if draw.random() < 0.1 else step


def small(model, pre_tokenizer=None, decoder=None, post_processor=None, normalizer=None):
    made = Tokenizer(model)
    for name, part in (("pre_tokenizer", pre_tokenizer), ("decoder", decoder), ("post_processor", post_processor), ("normalizer", normalizer)):
        if part is not None:
            setattr(made, name, part)
    return made


def other_kinds():
    """Of BERT's, T5's and older models' kinds: (tokenizer, end token)."""
    letters = sorted(set("abcdefghijklmnopqrstuvwxyzTZ0123456789.,;=+'?\u00e9\u4e16"))
    words = {word: i for i, word in enumerate(["[UNK]", "[CLS]", "[SEP]", "the", "text", *letters, *("##" + letter for letter in letters)])}
    yield small(models.WordPiece(words, unk_token="[UNK]"), pre_tokenizers.BertPreTokenizer(), decoders.WordPiece(),
                processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1)),
                normalizers.BertNormalizer()), "[SEP]"
    pieces = [("<unk>", 0.0), ("</s>", 0.0), ("\u2581", -2.0), ("\u2581the", -3.0), *((letter, -4.0 - i / 8) for i, letter in enumerate(letters))]
    end = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    yield small(models.Unigram(pieces, 0, False), pre_tokenizers.Metaspace(), decoders.Metaspace(), end, normalizers.NFKC()), "</s>"
    yield small(models.WordLevel({word: i for i, word in enumerate(["<unk>", "<eos>", "it", "'", "s", "a", "text", "."])}, "<unk>"),
                pre_tokenizers.Whitespace()), "<eos>"


CLASSES_OF_KIND = {"llama2": ("LlamaTokenizer", "CodeLlamaTokenizer", "GemmaTokenizer"),
                   "gpt2": ("GPT2Tokenizer", "Qwen2Tokenizer", "GPTNeoXTokenizer", "CohereTokenizer")}


def seeds():
    asked = json.dumps(ASKED).encode()
    for kind, (build, end, begin, template) in KINDS.items():
        config = {"eos_token": end, "bos_token": begin, "tokenizer_class": "PreTrainedTokenizerFast", "chat_template": template or KINDS["smollm"][3]}
        made, written = build().to_str().encode(), json.dumps(config).encode()
        yield {"tokenizer.json": made, "tokenizer_config.json": written, "asked.json": asked}
        for name in CLASSES_OF_KIND.get(kind, ()):
            yield {"tokenizer.json": made, "tokenizer_config.json": written, "asked.json": json.dumps({**ASKED, "class": name}).encode()}
    for made, end in other_kinds():
        number = made.token_to_id(end)
        yield {"tokenizer.json": made.to_str().encode(), "generation_config.json": json.dumps({"eos_token_id": [number], "max_length": 20}).encode(),
               "config.json": json.dumps({"eos_token_id": number, "vocab_size": 100}).encode(), "chat_template.jinja": KINDS["smollm"][3].encode(),
               "asked.json": asked}
    first = next(iter(KINDS.values()))[0]()
    config = {"eos_token": {"content": "<|endoftext|>", "lstrip": False}, "chat_template": [{"name": "default", "template": KINDS["qwen"][3]},
                                                                                            {"name": "tool_use", "template": "{{ x }}"}]}
    yield {"tokenizer.json": first.to_str().encode(), "tokenizer_config.json": json.dumps(config).encode(),
           "asked.json": json.dumps({**ASKED, "end_token": "<|endoftext|>"}).encode()}


def places(tree, draw):
    """The way to a part of a tree, as (what holds it, its key), from the top."""
    way = []
    while isinstance(tree, (dict, list)) and tree:
        key = draw.choice(list(tree)) if isinstance(tree, dict) else draw.randrange(len(tree))
        way.append((tree, key))
        tree = tree[key]
        if draw.random() < 0.25:
            break
    return way


def like_value(value, draw):
    """Another value of its type, which is more often taken."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return draw.choice([one for one in VALUES if type(one) is type(value)] + [value + 1])
    if isinstance(value, str):
        return draw.choice([one for one in VALUES if isinstance(one, str)])
    if isinstance(value, list):
        return draw.sample(value, draw.randint(0, len(value)))
    return {key: one for key, one in value.items() if draw.random() < 0.9} if isinstance(value, dict) else value


def other_value(value, draw, strangers):
    if draw.random() < 0.6:
        return like_value(value, draw)
    kind = draw.randrange(8)
    if kind == 0 and isinstance(value, (int, float)):
        return draw.choice((-value, value + 1, value - 1, value * 2, float(value) if abs(value) < 1e300 else 0, str(value)[:99]))
    if kind == 1 and isinstance(value, str) and value:
        at = draw.randrange(len(value))
        return draw.choice((value[:at], value[at:], value[:at] + str(draw.choice(VALUES))[:99] + value[at:], value + value, value.upper()))
    if kind == 2:
        return [value] if draw.random() < 0.5 else {"content": value}
    if kind == 3:
        deep = value
        for _ in range(draw.choice((3, 30, 120, 600))):
            deep = [deep] if draw.random() < 0.5 else {"a": deep}
        return deep
    if kind == 4 and strangers:
        way = places(draw.choice(strangers), draw)
        if way:
            return copy.deepcopy(way[-1][0][way[-1][1]])
    return draw.choice(VALUES)


def change_tree(tree, draw, strangers):
    """One change of a tree of JSON; `strangers`: trees whose parts may come into it."""
    way = places(tree, draw)
    if not way:
        return draw.choice(VALUES)
    holder, key = way[-1]
    kind = draw.randrange(7)
    if kind == 0:
        del holder[key]
    elif kind == 1 and isinstance(holder, list):
        holder.insert(draw.randrange(len(holder) + 1), copy.deepcopy(holder[key]))
    elif kind == 1:
        holder[str(draw.choice(VALUES))[:99] if draw.random() < 0.5 else draw.choice(list(holder))] = holder[key]
    elif kind == 2:
        there, other = draw.choice(places(tree, draw))
        holder[key], there[other] = copy.deepcopy(there[other]), copy.deepcopy(holder[key])
    elif kind == 3 and isinstance(holder[key], (dict, list)):  # of a long list or table only some
        whole = holder[key]
        share = draw.random()
        holder[key] = [one for one in whole if draw.random() < share] if isinstance(whole, list) else {k: v for k, v in whole.items() if draw.random() < share}
    else:
        holder[key] = other_value(holder[key], draw, strangers)
    return tree


def change_bytes(data, draw):
    data = bytearray(data)
    for _ in range(draw.choice((1, 1, 2, 8))):
        at, kind = draw.randrange(len(data) + 1), draw.randrange(5)
        if kind == 0 and data:
            data[at % len(data)] ^= 1 << draw.randrange(8)
        elif kind == 1:
            del data[at : at + draw.choice((1, 2, 20))]
        elif kind == 2:
            data[at:at] = draw.choice(BYTES)
        elif kind == 3:
            data[at:at] = data[at : at + draw.choice((1, 5, 50))]
        elif draw.random() < 0.2:
            del data[at:]
    return bytes(data)


def change_template(source, draw):
    for _ in range(draw.choice((1, 1, 2, 4))):
        at = draw.randrange(len(source) + 1)
        if draw.random() < 0.5:  # where a block begins
            at = max(source.rfind("{%", 0, at), source.rfind("{{", 0, at), 0)
        much = draw.choice((0, 0, 1, 5, 40))
        source = source[:at] + draw.choice(SNIPPETS) + source[at + much :] if draw.random() < 0.7 else source[:at] + source[at + much :]
    return source


def changed_file(name, data, draw, strangers):
    if draw.random() < 0.15:
        return change_bytes(data, draw)
    if name == "chat_template.jinja":
        return change_template(data.decode(errors="replace"), draw).encode(errors="surrogatepass")
    try:
        tree = json.loads(data)
        others = [json.loads(one) for one in strangers]
    except (ValueError, RecursionError):
        return change_bytes(data, draw)
    if isinstance(tree, dict) and isinstance(tree.get("chat_template"), str) and draw.random() < 0.7:
        tree["chat_template"] = change_template(tree["chat_template"], draw)
        return json.dumps(tree).encode()
    try:
        for _ in range(draw.choice((1, 1, 1, 2, 4))):
            if name == "tokenizer.json" and isinstance(tree, dict) and draw.random() < 0.25:
                change_steps(tree, draw)
            else:
                tree = change_tree(tree, draw, others)
        return json.dumps(tree).encode()
    except (ValueError, RecursionError):
        return data


def changed(one, draw, corpus):
    """Another input, of one and of parts of others."""
    made = dict(one)
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        name = draw.choice(list(made)) if draw.random() < 0.6 else "tokenizer.json"
        if name not in made:
            made[name] = b"{}"
        if draw.random() < 0.02 and name != "asked.json":
            del made[name]
        elif draw.random() < 0.06:
            other = draw.choice(corpus)
            made.update({n: other[n] for n in other if n == draw.choice(list(other))})
        else:
            stranger = draw.choice(corpus).get(name)
            made[name] = changed_file(name, made[name], draw, [stranger] if stranger and draw.random() < 0.3 else [])[:LONGEST]
    return made
