"""Inputs that once ended the worker of tokenizers otherwise than with a refusal that names their file, or were taken: fuzz_tokenizer.py tries them first."""
import json

from tokenizers import models, pre_tokenizers, decoders, processors

from tokenizer_inputs import ASKED, small

LETTERS = sorted(pre_tokenizers.ByteLevel.alphabet())
TEMPLATE = "{% for m in messages %}{{ m.role + '|' + m.content + '<end>' }}{% endfor %}{% if add_generation_prompt %}assistant|{% endif %}"


def tokenizer(**changes):
    """A byte-level one; `changes`: other values of its keys, those of "model" beside what it has."""
    vocab = {letter: i for i, letter in enumerate([*LETTERS, "<end>"])}
    made = json.loads(small(models.BPE(vocab, []), pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()).to_str())
    made["model"].update(changes.pop("model", {}))
    return {"tokenizer.json": json.dumps({**made, **changes})}


def config(**keys):
    return {"tokenizer_config.json": json.dumps({"eos_token": "<end>", "chat_template": TEMPLATE, **keys})}


def nameless(value):
    return {"tokenizer_config.json": json.dumps({"chat_template": TEMPLATE}), "config.json": '{"eos_token_id": %s}' % value}


def template(source):
    return {"chat_template.jinja": source}


def cut_file(**changes):
    return {name: text[:-1] for name, text in tokenizer(**changes).items()}


def framed(number):
    return tokenizer(post_processor=json.loads(processors.TemplateProcessing(single="a $A", special_tokens=[("a", number)]).__getstate__()))


def lines(*some):
    return {"asked.json": json.dumps({**ASKED, "lines": some})}


WORD = {"type": "WordLevel", "vocab": {"<end>": 0, "only": 1}, "unk_token": "<unk>"}
SILENT = {"type": "BPE", "vocab": {"<end>": 0}, "merges": [], "byte_fallback": False, "fuse_unk": False, "ignore_merges": False}
UNIT = '{"role": "assistant", "content": "b"}'
# What differs from a tokenizer that is taken: the operation that refuses it, the kind, and words of the message; no operation: it is taken.
CASES = [
    ({}, None, "", ""),
    (tokenizer(normalizer={"type": "Precompiled", "precompiled_charsmap": "Isolated"}), "open", "data", "cut or damaged"),
    (tokenizer(normalizer={"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Precompiled", "precompiled_charsmap": "////fw=="}]}), "open", "data",
     "cut or damaged"),
    (cut_file(normalizer={"type": "Precompiled", "precompiled_charsmap": "Isolated"}), "open", "data", "cut or damaged"),
    (cut_file(normalizer={"type": "Precompiled", "precompiled_charsmap": ""}), "open", "data", "tokenizer.json: it cannot be read: Expecting"),
    ({"tokenizer_config.json": "[]"}, "open", "data", "tokenizer_config.json: it is a list, but must be an object"),
    ({"generation_config.json": "1e999"}, "open", "data", "generation_config.json: it is Infinity"),
    ({"tokenizer_config.json": "[" * 100000}, "open", "data", "tokenizer_config.json: it cannot be read: it is nested too deeply"),
    ({"config.json": "\udcff"}, "open", "data", "config.json: it cannot be read"),
    (config(eos_token=5), "open", "data", 'tokenizer_config.json: "eos_token" is 5'),
    (config(eos_token="\ud800"), "open", "data", 'tokenizer_config.json: "eos_token" is "\\ud800"'),
    (config(eos_token={"lstrip": False}), "open", "data", '"eos_token" is an object'),
    (config(extra_special_tokens=["a", 5]), "open", "data", 'tokenizer_config.json: "extra_special_tokens[1]" is 5'),
    (config(image_token={"lstrip": True}), "open", "data", '"image_token" is an object'),
    (config(added_tokens_decoder=[5]), "open", "data", '"added_tokens_decoder" has'),
    (config(added_tokens_decoder={"a": {"content": "a"}}), "open", "data", '"added_tokens_decoder" has "a": an object'),
    (config(added_tokens_decoder={"7": {"content": 7}}), "open", "data", '"added_tokens_decoder" has "7"'),
    (config(bos_token=[1]), "open", "data", 'tokenizer_config.json: "bos_token" is a list'),
    *((nameless(value), "open", "data", 'config.json: "eos_token_id" has ') for value in ("true", "3.0", "-1", "4294967296", "NaN", '"3"', "[3, [4]]",
                                                                                          '{"a": 3}', "[256, 1099511627776]")),
    (nameless("100000"), "open", "usage", "the token that ends a document is not clear"),
    (nameless("256"), None, "", ""),
    (tokenizer(model={"vocab": {}, "merges": []}), "open", "data", "tokenizer.json: its vocabulary is empty"),
    (tokenizer(model={"vocab": {"a": 2**32 - 1}}), "open", "data", "tokenizer.json: its vocabulary goes to the number 4294967295"),
    (tokenizer(model=SILENT, pre_tokenizer=None, decoder=None), "open", "data", "tokenizer.json: it has no tokens for any text"),
    (tokenizer(model={"vocab": {letter: i for i, letter in enumerate([*LETTERS[:40], *LETTERS[41:], "<end>"])}}), "open", "data",
     "cannot be restored from them: not all bytes have a token"),
    (tokenizer(model=WORD, pre_tokenizer=None, decoder=None), "open", "data", "cannot tokenize 'a': WordLevel error"),
    (tokenizer(normalizer={"type": "Precompiled", "precompiled_charsmap": "AAAA"}), "open", "data", "tokenizer.json: the tokenizers package"),
    (tokenizer(pre_tokenizer={"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}, decoder=None), None, "", ""),
    (framed(100000), "open", "data", "tokenizer.json: it has the number 100000 for a text, and its tokens go to 256"),
    ({"chat_template.jinja": "\udcff"}, "chat", "data", "chat_template.jinja: it cannot be read"),
    (config(chat_template=True), "chat", "data", '"chat_template" is true, and must be a text'),
    (config(chat_template=["a"]), "chat", "data", '"chat_template" is a list, and must be a text'),
    (config(chat_template=[{"name": "default", "template": 1}]), "chat", "data", '"chat_template" is 1, and must be a text'),
    (config(chat_template="\ud800"), "chat", "data", "and must be a text"),
    (template("{{ raise_exception('\\ud800 no \\n way') }}"), "chat", "data", "fails: TemplateError: \\ud800 no way"),
    (template("{{ '\\ud800' }}" + TEMPLATE), "chat", "data", "makes halves of surrogate pairs"),
    (template("{{ " + "(" * 3000), "chat", "data", "cannot be read"),
    (template("{% break %}"), "chat", "data", "cannot be read: 'break' outside loop"),
    (template("{{ 9 ** (9 ** 9) }}"), "chat", "data", "a power of 387420489 is too large"),
    (template("{{ 'a' ** 2 }}"), "chat", "data", "fails: TypeError"),
    (template("{{ 2 ** 'a' }}"), "chat", "data", "fails: TypeError"),
    (template("{{ 'a' * 9999999999 }}"), "chat", "data", "fails: MemoryError"),
    (template("{% set x = 'a' * 10**10 %}{{ x }}"), "chat", "data", "fails: MemoryError"),
    (template("{% set n = namespace(k=4000000) %}{{ 'a' * n.k }}" + TEMPLATE), "chat", "data", "makes 4000"),
    (template("{{ lipsum(n=99999) }}"), "chat", "data", "fails: TimeoutError: it runs for more than"),
    ({**template("{{ lipsum(n=99999) }}"), **lines()}, "prom", "data", "the prompt: the chat template of model fails: TimeoutError: it runs for more than"),
    (template("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"), "chat", "data", "fails: TimeoutError"),
    (lines('{"messages": ' + "[" * 50000 + "]" * 50000 + "}"), "chat", "data", "chat.jsonl:1: it cannot be read"),
    (lines('{"messages": [%s], "n": %s}' % (UNIT, "9" * 5000)), "chat", "data", "chat.jsonl:1: it cannot be read"),
    (lines('{"prompt": "\\ufdd0", "completion": "b"}'), "chat", "data", "chat.jsonl:1: a message holds U+FDD0"),
    (lines('{"messages": [%s, {"role": "\ufdd1", "content": ""}]}' % UNIT), "chat", "data", "chat.jsonl:1: a message holds U+FDD0"),
    (lines('{"instruction": "a", "input": {"b": 1}, "output": "c"}'), "chat", "data", 'the "input" of the object is not a string'),
]


def cases():
    """(files, what must be answered)."""
    for changes, *wanted in CASES:
        files = {**tokenizer(), **config(), "asked.json": json.dumps(ASKED), **changes}
        yield {name: text.encode(errors="surrogateescape") for name, text in files.items()}, wanted


def check(said, wanted):
    """What is wrong with the answers to a case, or ""."""
    operation, kind, words = wanted
    if operation is None:
        return f"it must be taken: {said}" if said else ""
    right = any(one == operation.encode() and what == kind and words in message for one, what, message in said)
    return "" if right else f"{operation} must refuse it as {kind} with {words!r}: {said}"
