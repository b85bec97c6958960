# The tokenizer's side of io/tokenizer, after channel.py, model_files.py, class_pipeline.py, conversation.py, chat_template.py and
# preferences.py, which are one program with it.
import contextlib
import functools
import json
import os
import struct
import unicodedata
from array import array

os.environ["TOKENIZERS_PARALLELISM"] = "false"  # a worker is one core's
os.environ["RUST_BACKTRACE"] = "0"  # of a panic the message says enough

missing = None
try:
    import tokenizers
except ImportError as error:
    tokenizers, missing = None, error

PART_CHARACTERS = 1 << 20
PROBES = ["a", "Z", "7", "it's", ".", ")", "--", "\u00e9", "\u4e2d", "\u0639", "\U0001f600", "\u0915\u093f"]


@functools.cache
def every_byte():
    """A text with every byte that UTF-8 has, but for those of control characters and of planes that nobody writes; no two of its characters are composed."""
    blocks = [*(range(at, at + 0x40) for at in range(0x80, 0x800, 0x40)), range(0x800, 0x1000),
              *(range(at, at + 0x1000) for at in range(0x1000, 0x10000, 0x1000))]
    letters = (next((c for c in map(chr, block) if unicodedata.category(c)[0] == "L" and unicodedata.is_normalized("NFC", c)), "") for block in blocks)
    return " " + "".join([*map(chr, [9, 10, 13, *range(32, 127), *range(0xc0, 0x100)]), *letters, "\u0334\U0001f600"])


class Model:
    """A model's tokenizer, from its folder."""

    def __init__(self, folder, end_token, chat_template, of_class):
        self.folder, self.path = folder, os.path.join(folder, "tokenizer.json")
        self.config_path = os.path.join(folder, "tokenizer_config.json")
        self.notes = []
        self.class_name, self.of_class, self.framed_by = of_class
        with self.faults("read it"):
            check_charsmaps(self.path)
            self.tokenizer = tokenizers.Tokenizer.from_file(self.path)
            self.config = tokenizer_config(folder)
            self.build_as_class()
            self.tokenizer.no_truncation()
            self.tokenizer.no_padding()
            numbers = self.tokenizer.get_vocab(with_added_tokens=True)
        declared = [end_ids(read_json(folder, name), os.path.join(folder, name)) for name in ("generation_config.json", "config.json")]
        if self.add_tokens():
            numbers = self.tokenizer.get_vocab(with_added_tokens=True)
        self.vocab = 1 + max(numbers.values(), default=-1)
        if not 0 < self.vocab <= MOST_VOCAB:
            raise Fault(f"{self.path}: its vocabulary {f'goes to the number {self.vocab - 1}' if numbers else 'is empty'}. {AGAIN}.")
        self.end = self.find_end(end_token, declared)
        self.stops = sorted({self.end, *declared[0], *declared[1]})
        self.chat, self.chat_template, self.unused = None, chat_template, set()
        self.find_frame(numbers)
        self.check_bytes()

    @contextlib.contextmanager
    def faults(self, doing):
        """Whatever the package raises: it has one kind for all, and panics of its Rust are no Exception."""
        try:
            yield
        except (Fault, MemoryError, SystemExit):
            raise
        except BaseException as error:
            raise Fault(f"{self.path}: the tokenizers package {tokenizers.__version__} cannot {doing}: {error}. {AGAIN}, or a newer "
                        f"package.")

    def ids(self, text, special=False):
        with self.faults(f"tokenize {text[:40]!r}"):
            return self.tokenizer.encode(text, add_special_tokens=special).ids

    def decoded(self, ids, skip=True):
        with self.faults("make a text of tokens"):
            return self.tokenizer.decode(ids, skip_special_tokens=skip)

    def build_as_class(self):
        """Some classes take the vocabulary of tokenizer.json alone, and build the rest as tokenizer_config.json says."""
        text, changed = as_its_class_builds(self.path, self.config, self.class_name)
        if text:
            self.tokenizer = tokenizers.Tokenizer.from_str(text)
            self.notes.append(f"{self.config_path}: {changed}")

    def add_tokens(self):
        """Those that tokenizer_config.json has, and tokenizer.json has not or has otherwise, as transformers adds them; but an end token that it names must be
        there. Answers whether there were such."""
        named = special_token(self.config, "eos_token", self.config_path)
        before = self.tokenizer.get_added_tokens_decoder().values()
        known, texts = {repr(token) for token in before}, {token.content for token in before}
        wanted = [tokenizers.AddedToken(**parts) for parts in listed_tokens(self.config, self.config_path)]
        wanted = [token for token in wanted if repr(token) not in known]
        texts.update(token.content for token in wanted)
        for parts in special_tokens(in_order_of_numbers({**self.of_class, **self.config}, self.of_class), self.config_path):
            if parts["content"] not in texts and (parts["content"] != named or self.tokenizer.token_to_id(named) is not None):
                wanted.append(tokenizers.AddedToken(**parts))
                texts.add(parts["content"])
        new = [token.content for token in wanted if self.tokenizer.token_to_id(token.content) is None]
        if new:
            self.notes.append(f"{self.config_path}: tokens that tokenizer.json lacks get the numbers after its last, as in transformers: "
                              f"{', '.join(new)}")
        unused = unused_keys(self.config)
        if unused:
            self.notes.append(f"{self.config_path}: not used: {', '.join(unused)}")
        if self.config.get("split_special_tokens"):
            self.tokenizer.encode_special_tokens = True
        if wanted:
            with self.faults("add the tokens of tokenizer_config.json"):
                self.tokenizer.add_tokens(wanted)
        if before := special_token({**self.of_class, **self.config}, self.framed_by, self.config_path) if self.framed_by else "":
            frame = [(before, self.tokenizer.token_to_id(before))]
            self.tokenizer.post_processor = tokenizers.processors.TemplateProcessing(single=f"{before}:0 $A:0", pair=None, special_tokens=frame)
        return bool(wanted)

    def find_end(self, name, declared):
        """The token that ends a document."""
        known = [os.path.join(self.folder, n) for n in ("tokenizer_config.json", "special_tokens_map.json", "generation_config.json", "config.json")]
        source = "--end-token" if name else known[0]
        name = name or special_token(self.config, "eos_token", self.config_path)
        if name:
            found = self.tokenizer.token_to_id(name)
            if found is None:
                raise Fault(f"{source} names the end token {name!r}, which is not a token of {self.folder}/tokenizer.json. Name another: "
                            f"--end-token NAME.",
                            "usage")
            return found
        for ids in declared:
            if len(ids) == 1 and ids[0] < self.vocab and self.tokenizer.id_to_token(ids[0]) is not None:
                return ids[0]
        raise Fault(f"{self.folder}: the token that ends a document is not clear: none of {', '.join(known)} names exactly one. Give "
                    f"--end-token NAME.", "usage")

    def find_frame(self, numbers):
        """What the tokenizer puts around each text, and whether a text may be cut after the end of a line with no token changed."""
        self.frame, bare = None, []
        for text in self.probes(numbers):
            bare, framed = self.ids(text), self.ids(text, True)
            if max(framed, default=0) >= self.vocab:
                raise Fault(f"{self.path}: it has the number {max(framed)} for a text, and its tokens go to {self.vocab - 1}. {AGAIN}.")
            places = [i for i in range(len(framed) - len(bare) + 1) if framed[i : i + len(bare)] == bare]
            if bare and len(places) == 1:
                self.frame = (framed[: places[0]], framed[places[0] + len(bare) :])
            if bare and len(places) < 2:
                break
        if not bare:
            raise Fault(f"{self.path}: it has no tokens for any text: {', '.join(map(repr, PROBES))} and the texts of its own tokens come "
                        f"to nothing. {AGAIN}.")
        self.cuts = self.frame is not None and self.cuts_at_lines()

    def probes(self, numbers):
        """Texts that have tokens: of a tokenizer that knows none of the usual ones, those of its vocabulary."""
        yield from PROBES
        added = self.tokenizer.get_added_tokens_decoder()
        yield from [name for name, number in sorted(numbers.items(), key=lambda one: one[1]) if number not in added][:200]

    def check_bytes(self):
        """A tokenizer that takes each byte for a letter, but has not all of them, would leave out of texts what it has not."""
        with self.faults("read it"):
            parts = self.tokenizer.normalizer, self.tokenizer.pre_tokenizer, self.tokenizer.decoder
            normalizer, before, decoder = (json.loads(part.__getstate__()) if part is not None else {"type": ""} for part in parts)
        steps = before["pretokenizers"] if before["type"] == "Sequence" else [before]
        keeps = all(step["type"] in ("ByteLevel", "Split", "Digits", "Punctuation") and step.get("behavior") != "Removed" for step in steps)
        spaced = len(steps) > 1 and any(step.get("add_prefix_space") for step in steps)
        if normalizer["type"] not in ("",
                                      "NFC") or decoder["type"] != "ByteLevel" or not any(step["type"] == "ByteLevel" for step in steps) or not keeps or spaced:
            return
        text = every_byte()
        back = self.decoded(self.ids(text), False)
        if back != text:
            lost = next((c for c, d in zip(text, back) if c != d), text[-1])
            raise Fault(f"{self.path}: its tokens are of bytes, and {lost!r} cannot be restored from them: not all bytes have a token. "
                        f"{AGAIN}.")

    def cuts_at_lines(self):
        for token in self.tokenizer.get_added_tokens_decoder().values():
            if token.lstrip or token.rstrip or "\n" in token.content:
                return False
        texts = [*PROBES, *(x + "\n" for x in PROBES), *(x + "\n" + y for x in PROBES for y in PROBES)]
        ids = {text: encoding.ids for text, encoding in zip(texts, self.encode_batch(texts, False, False))}
        return all(ids[x + "\n" + y] == ids[x + "\n"] + ids[y] for x in PROBES for y in PROBES)

    def describe(self):
        return {"vocab": self.vocab, "end": self.end, "end_name": self.tokenizer.id_to_token(self.end), "stops": self.stops, "cuts": self.cuts, "notes": self.notes,
                "package": f"tokenizers {tokenizers.__version__}"}

    def ended(self, ids, mask, counts=True):
        """The ids of a whole document, which ends with the end token; whether that counts."""
        if not ids or ids[-1] != self.end:
            ids, mask = ids + [self.end], mask + b"\0"
        return ids, mask[:-1] + bytes([counts])

    def encode_batch(self, texts, special, offsets):
        encode = self.tokenizer.encode_batch if offsets else self.tokenizer.encode_batch_fast
        try:
            return encode(texts, add_special_tokens=special)
        except BaseException:  # the package does not say of which text it is
            for text in texts:
                self.ids(text, special)
            with self.faults("tokenize texts"):
                raise

    def encode(self, request):
        """Documents or parts of them: each what of a document it has (1 its beginning, 2 its end) and its pieces of text, which count or not."""
        masked, documents = request.number("<B"), []
        for _ in range(request.number()):
            part = request.number("<B")
            documents.append((part, [(request.number("<B"), request.text()) for _ in range(request.number())]))
        texts = ["".join(text for _, text in pieces) for _, pieces in documents]
        whole = [part == 3 for part, _ in documents]
        if all(whole) or not any(whole):
            encodings = self.encode_batch(texts, all(whole), masked)
        else:
            encodings = [self.encode_batch([text], w, masked)[0] for text, w in zip(texts, whole)]
        answer = [struct.pack("<I", len(texts))]
        for (part, pieces), encoding in zip(documents, encodings):
            ids = encoding.ids
            mask = mask_of(encoding.offsets, spans_of(pieces)) if masked else b""
            if part in (1, 2) and self.frame is None:
                raise Fault(f"{self.folder}: the tokens that the tokenizer adds around a text are not clear, so no text can be continued.")
            if part & 1 and part != 3:
                ids, mask = self.frame[0] + ids, b"\0" * len(self.frame[0]) + mask
            if part & 2:
                if part != 3:
                    ids, mask = ids + self.frame[1], mask + b"\0" * len(self.frame[1])
                ids, mask = self.ended(ids, mask)
            answer.append(packed(ids, mask if masked else b""))
        return b"".join(answer)

    def template(self, tools=None):
        if self.chat is None:
            self.chat = Templates(self.folder, self.config, *self.chat_template)
        return self.chat.of(tools)

    def encode_chats(self, request):
        """Objects of JSON: the conversation of each as the template renders it, and what of it the model would have said. Before them which keys of lines and
        messages were of no use, each once."""
        field, rendered, unused = request.text(), [], set()
        ignored = frozenset(request.text() for _ in range(request.number()))
        for _ in range(request.number()):
            where, data = request.text(), request.text()
            chat = conversation_of(where, read_line(where, data), field)
            text, spans, left = self.template(chat.tools).conversation(where, chat, len(data), ignored)
            rendered.append((text, spans, chat.counts[-1] and chat.messages[-1]["role"] == "assistant"))
            unused |= left - self.unused
        answer = [packed_text(json.dumps(sorted(unused))), struct.pack("<I", len(rendered))]
        stops = tuple(self.tokenizer.id_to_token(stop) or "\0" for stop in self.stops)
        for some in in_parts(rendered):
            for (text, spans, counts), encoding in zip(some, self.encode_batch([text for text, _, _ in some], False, True)):
                ids, mask = encoding.ids, mask_of(encoding.offsets, spans)
                if not text.rstrip().endswith(stops):
                    ids, mask = self.ended(ids, mask, counts)
                answer.append(packed(ids, mask))
        self.unused |= unused
        return b"".join(answer)

    def encode_preferences(self, request):
        """Objects of JSON, each a prompt with completions (preference_of). A sequence is a prompt with one of them. What counts begins with
        the first token that differs from those of the prompt alone, in both sequences of a pair at one place. Of more than `longest` tokens
        the first are kept; where the prompt alone has as many, the line is left out. Before the sequences come keys of no use, and counts."""
        as_chat, longest, lines, unused = request.number("<B"), request.number("<q"), [], set()
        ignored = frozenset(request.text() for _ in range(request.number()))
        told = {"equal": 0, "without_prompt": 0, "too_long": 0, "truncated": 0}
        for _ in range(request.number()):
            where, data = request.text(), request.text()
            one = preference_of(where, read_line(where, data), as_chat, ignored)
            if one is None:
                told["equal"], told["without_prompt"] = told["equal"] + 1, told["without_prompt"] + 1
                continue
            lines.append((where, one, self.texts_of(where, one, len(data), ignored)))
            unused |= one.unused
        answer, sequences = [], 0
        for where, one, ids in self.ids_of(lines):
            kept = self.sequences_of(where, ids, longest, told)
            for begin, sequence in kept:
                label, margin = 2 if one.label is None else one.label, math.nan if one.margin is None else one.margin
                answer += [packed(sequence, b"\0" * begin + b"\1" * (len(sequence) - begin)), struct.pack("<Bf", label, margin)]
            sequences += len(kept)
        head = [packed_text(json.dumps(sorted(unused))), packed_text(json.dumps(told)), struct.pack("<I", sequences)]
        return b"".join([*head, *answer])

    def texts_of(self, where, one, given, ignored):
        """The prompt's text, and that of the prompt with each completion."""
        if not one.chats():
            return [one.prompt, *(one.prompt + completion for completion in one.completions)]
        before, texts = None, []
        for chat in one.completions:
            before, text, left = self.template(chat.tools).completed(where, chat, one.prompt, given, ignored)
            texts.append(text)
            one.unused |= left
        return [before, *texts]

    def ids_of(self, lines):
        """Of each line the ids of its texts; those of completions are ended."""
        stops = tuple(self.tokenizer.id_to_token(stop) or "\0" for stop in self.stops)
        for chats in (False, True):
            texts = [(text,) for _, one, texts in lines if one.chats() == chats for text in texts]
            parts = ([text for text, in some] for some in in_parts(texts))
            encoded = (encoding.ids for part in parts if part for encoding in self.encode_batch(part, not chats, False))
            for _, one, texts in lines:
                if one.chats() == chats:
                    one.ids = [next(encoded), *(self.closed(text, next(encoded), stops if chats else ()) for text in texts[1:])]
        return [(where, one, one.ids) for where, one, _ in lines]

    def closed(self, text, ids, stops):
        """With the end token, where the text does not end with one of its kind."""
        return ids if stops and text.rstrip().endswith(stops) or ids and ids[-1] == self.end else [*ids, self.end]

    def sequences_of(self, where, ids, longest, told):
        """The kept sequences of a line, each where its completion begins and its ids."""
        prompt, sequences = ids[0], ids[1:]
        begin = max(1, min(first_difference(prompt, one) for one in sequences))
        if any(len(one) <= begin for one in sequences):
            raise Fault(f"{where}: a completion has no token of its own after the prompt, so there is nothing to compare. Remove the line.")
        told["equal"] += len(sequences) == 2 and sequences[0] == sequences[1]
        if longest and begin >= longest:
            told["too_long"] += 1
            return []
        cut = [one[:longest] if longest else one for one in sequences]
        told["truncated"] += sum(len(one) < len(whole) for one, whole in zip(cut, sequences))
        return [(begin, one) for one in cut]

    def render_prompt(self, request):
        """The text of messages after which it is the model's turn."""
        where, text = request.text(), request.text()
        chat = messages_of(where, json.loads(text))
        return self.template().prompt(where, chat, len(text)).encode()

    def begin_stream(self, request):
        """The prompt's ids, after which tokens come one by one."""
        ids = array("I", request.data)
        self.told, self.before, self.shown = list(ids), max(0, len(ids) - 8), len(ids)
        return b""

    def step_stream(self, request):
        """The text that one token more adds, once its characters are whole; what the tokens just before it come to is not said again."""
        self.told.append(request.number())
        text = self.decoded(self.told[self.before :])
        return b"" if text.endswith("\ufffd") else self.new_text(text)

    def end_stream(self, request):
        return self.new_text(self.decoded(self.told[self.before :]))

    def new_text(self, text):
        known = len(self.decoded(self.told[self.before : self.shown]))
        if len(text) > known:
            self.before, self.shown = self.shown, len(self.told)
        return text[known:].encode()

    def encode_prompt(self, request):
        """The ids of messages after which it is the model's turn."""
        chat = messages_of("the prompt", json.loads(request.data))
        return packed(self.ids(self.template().prompt("the prompt", chat, len(request.data))), b"")


def in_parts(rendered):
    """Texts with their spans, as many at once as are PART_CHARACTERS: tokens take hundreds of bytes each until they are packed, and a template may make a
    thousand times more text than it was given."""
    part, size = [], 0
    for one in rendered:
        if part and size + len(one[0]) > PART_CHARACTERS:
            yield part
            part, size = [], 0
        part.append(one)
        size += len(one[0])
    yield part


def packed(ids, mask):
    return struct.pack("<I", len(ids)) + array("I", ids).tobytes() + mask


def packed_text(text):
    return struct.pack("<I", len(text.encode())) + text.encode()


def mask_of(offsets, spans):
    """A byte for each token: 1 where a character of it counts. Tokens and spans come in order; a token has the blanks before it that a post-processor
    has taken out of its offsets."""
    mask, k, last = bytearray(len(offsets)), 0, 0
    for i, (begin, end) in enumerate(offsets):
        begin, last = min(begin, last) if end >= last else begin, max(last, end)
        while k < len(spans) and spans[k][1] <= begin:
            k += 1
        if k == len(spans):
            break
        mask[i] = end > spans[k][0] and end > begin
    return bytes(mask)


def open_model(request):
    require(tokenizers, "tokenizers", missing, PACKAGES)
    global model
    asked = json.loads(request.data)
    model = Model(asked["folder"], asked["end_token"], (asked["chat_template"], asked["chat_template_text"], asked["our_templates"]),
                  (asked["class"], asked["class_tokens"], asked["framed_by"]))
    return json.dumps(model.describe()).encode()


def texts_to_learn():
    """What comes in requests of their own, until the last, whose answer is the tokenizer."""
    while True:
        send(b"done", b"")
        head = receive(12)
        request = Reader(receive(struct.unpack("<Q", head[4:])[0]))
        if head[:4] == b"last":
            return
        for _ in range(request.number()):
            yield request.text()


def learn(request):
    """A byte-level BPE, as GPT-2's: text is cut by its expression, and no byte is unknown."""
    require(tokenizers, "tokenizers", missing, PACKAGES)
    asked = json.loads(request.data)
    os.environ["TOKENIZERS_PARALLELISM"] = "true"  # one worker alone learns
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=asked["vocab"], special_tokens=[asked["end_token"]], initial_alphabet=alphabet, show_progress=False)
    made.train_from_iterator(texts_to_learn(), trainer)
    return made.to_str().encode()


model = None
OPERATIONS = {b"open": open_model, b"text": lambda request: model.encode(request), b"chat": lambda request: model.encode_chats(request),
              b"pref": lambda request: model.encode_preferences(request),
              b"begi": lambda request: model.begin_stream(request), b"step": lambda request: model.step_stream(request),
              b"rest": lambda request: model.end_stream(request), b"prom": lambda request: model.encode_prompt(request), b"rend": lambda request: model.render_prompt(request),
              b"lear": learn}

if __name__ == "__main__":
    serve(OPERATIONS, int(sys.argv[1]))
