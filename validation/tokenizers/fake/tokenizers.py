"""Stands in for the tokenizers package where tests ask what is around it: a token is a character, its id the code point. tokenizer.json is
{"added": {NAME: ID, ...}, "prefix": [NAME, ...], "suffix": [NAME, ...]}. A text with DIE in it ends the process, with PANIC it raises what
is no Exception, with EAT it takes a GiB of memory, with ABORT it ends as a program of Rust does that gets none, with HANG it writes its id into the file that the text names and sleeps. What is learnt is the special tokens; the texts stand beside."""

import json
import os
import resource
import signal
import sys
from types import SimpleNamespace

__version__ = "0"


class Panic(BaseException):
    pass


class Encoding:
    def __init__(self, ids, offsets):
        self.ids, self.offsets = ids, offsets


class Added:
    def __init__(self, content):
        self.content, self.lstrip, self.rstrip = content, False, False


class ByteLevel:
    def __init__(self, **_):
        pass

    @staticmethod
    def alphabet():
        return []


class BpeTrainer:
    def __init__(self, vocab_size, special_tokens, initial_alphabet, show_progress):
        self.vocab, self.special = vocab_size, special_tokens


models, trainers = SimpleNamespace(BPE=object), SimpleNamespace(BpeTrainer=BpeTrainer)
pre_tokenizers = decoders = SimpleNamespace(ByteLevel=ByteLevel)


class Tokenizer:
    normalizer = pre_tokenizer = decoder = None

    def __init__(self, model=None):
        self.added, self.prefix, self.suffix = {}, [], []

    def train_from_iterator(self, texts, trainer):
        self.learnt = {"added": {name: 0x110000 + i for i, name in enumerate(trainer.special)}, "vocab": trainer.vocab, "texts": list(texts)}

    def to_str(self):
        return json.dumps(self.learnt)

    @staticmethod
    def from_file(path):
        made = Tokenizer()
        with open(path, encoding="utf-8") as file:
            rows = json.load(file)
        made.added = rows["added"]
        made.prefix, made.suffix = ([rows["added"][name] for name in rows.get(side, [])] for side in ("prefix", "suffix"))
        return made

    def no_truncation(self):
        pass

    def no_padding(self):
        pass

    def get_vocab(self, with_added_tokens):
        assert with_added_tokens
        return self.added

    def get_added_tokens_decoder(self):
        return {number: Added(name) for name, number in self.added.items()}

    def token_to_id(self, name):
        return self.added.get(name)

    def id_to_token(self, number):
        return next((name for name, n in self.added.items() if n == number), None) or chr(number)

    def encode(self, text, add_special_tokens):
        if "DIE" in text:
            print("the fake tokenizer was told to end", file=sys.stderr, flush=True)
            os._exit(9)
        if "EAT" in text:
            del [bytearray(16 << 20) for _ in range(64)][:]
        if "ABORT" in text:
            print("memory allocation of 16777216 bytes failed", file=sys.stderr, flush=True)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            os.abort()
        if "PANIC" in text:
            raise Panic("index out of bounds")
        if "HANG" in text:
            with open(text.split("HANG ")[1], "w", encoding="utf-8") as file:
                file.write(str(os.getpid()))
            print("the fake tokenizer sleeps", file=sys.stderr, flush=True)
            signal.pause()
        prefix, suffix = (self.prefix, self.suffix) if add_special_tokens else ([], [])
        offsets = [(0, 0)] * len(prefix) + [(i, i + 1) for i in range(len(text))] + [(0, 0)] * len(suffix)
        return Encoding(prefix + [ord(c) for c in text] + suffix, offsets)

    def encode_batch(self, texts, add_special_tokens):
        return [self.encode(text, add_special_tokens) for text in texts]

    encode_batch_fast = encode_batch
