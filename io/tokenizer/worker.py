# The tokenizer's side of io/tokenizer, after channel.py.
import base64
import contextlib
import functools
import json
import os
import re
import resource
import signal
import struct
import unicodedata
from array import array

os.environ["TOKENIZERS_PARALLELISM"] = "false"  # a worker is one core's
os.environ["RUST_BACKTRACE"] = "0"  # of a panic the message says enough

missing = missing_templates = None
try:
    import tokenizers
except ImportError as error:
    tokenizers, missing = None, error
try:
    import jinja2
    import jinja2.exceptions
    import jinja2.ext
    import jinja2.sandbox
except ImportError as error:
    jinja2, missing_templates = None, error


MOST_VOCAB = 2**31 - 1  # ids are int32
AGAIN = "Get the model's files again"


def read_json(folder, name):
    """The object of a file; an empty one where there is no file."""
    path = os.path.join(folder, name)
    try:
        with open(path, encoding="utf-8") as file:
            read = json.load(file)
    except FileNotFoundError:
        return {}
    except RecursionError:
        raise Fault(f"{path}: it cannot be read: it is nested too deeply. {AGAIN}.")
    except (OSError, ValueError) as error:
        raise Fault(f"{path}: it cannot be read: {error}. {AGAIN}.")
    if not isinstance(read, dict):
        raise Fault(f"{path}: it is {shown(read)}, and must be an object of JSON. {AGAIN}.")
    return read


def shown(value):
    """A value of JSON in a message."""
    if isinstance(value, (dict, list)):
        return "an object" if isinstance(value, dict) else "a list"
    return json.dumps(value)[:60]


def is_text(value):
    """JSON may have halves of surrogate pairs, which are no characters."""
    try:
        return isinstance(value, str) and value.encode() is not None
    except UnicodeEncodeError:
        return False


def special_token(config, key, path):
    """Its text, "" where none is named. It stands as its text, or as an object with it."""
    token = config.get(key)
    text = token.get("content") if isinstance(token, dict) else token
    if token is not None and not is_text(text):
        raise Fault(f'{path}: "{key}" is {shown(token)}, and must be the text of a token, or an object with that as "content". {AGAIN}, or correct it.')
    return text or ""


def end_ids(config, path):
    ids = config.get("eos_token_id")
    ids = [] if ids is None else ids if isinstance(ids, list) else [ids]
    for one in ids:
        if type(one) is not int or not 0 <= one < MOST_VOCAB:  # True is an int too
            raise Fault(f'{path}: "eos_token_id" has {shown(one)}, and must be the number of a token, a list of such, or null. {AGAIN}, or correct it.')
    return ids


PROBES = ["a", "Z", "7", "it's", ".", ")", "--", "\u00e9", "\u4e2d", "\u0639", "\U0001f600", "\u0915\u093f"]


@functools.cache
def every_byte():
    """A text with every byte that UTF-8 has, but for those of control characters and of planes that nobody writes; no two of its characters are composed."""
    blocks = [*(range(at, at + 0x40) for at in range(0x80, 0x800, 0x40)), range(0x800, 0x1000),
              *(range(at, at + 0x1000) for at in range(0x1000, 0x10000, 0x1000))]
    letters = (next((c for c in map(chr, block) if unicodedata.category(c)[0] == "L" and unicodedata.is_normalized("NFC", c)), "") for block in blocks)
    return " " + "".join([*map(chr, [9, 10, 13, *range(32, 127), *range(0xc0, 0x100)]), *letters, "\u0334\U0001f600"])


def check_charsmaps(path):
    """The package takes as much memory as such a map says that its trie has, before it looks whether that is there."""
    with open(path, "rb") as file:
        data = file.read()
    if b"precompiled_charsmap" not in data:
        return
    try:
        left = [json.loads(data).get("normalizer")]
        while left:
            one = left.pop()
            left += one["normalizers"] if one.get("type") == "Sequence" else []
            if one.get("type") == "Precompiled":
                charsmap = base64.b64decode(one["precompiled_charsmap"] or "")
                if len(charsmap) >= 4 and struct.unpack_from("<I", charsmap)[0] > len(charsmap) - 4:
                    raise Fault(f"{path}: the precompiled_charsmap of its normalizer is cut or damaged. {AGAIN}.")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        pass  # what else is wrong the package says


class Model:
    """A model's tokenizer, from its folder."""

    def __init__(self, folder, end_token):
        self.folder, self.path = folder, os.path.join(folder, "tokenizer.json")
        with self.faults("read it"):
            check_charsmaps(self.path)
            self.tokenizer = tokenizers.Tokenizer.from_file(self.path)
            self.tokenizer.no_truncation()
            self.tokenizer.no_padding()
            numbers = self.tokenizer.get_vocab(with_added_tokens=True)
        self.config_path = os.path.join(folder, "tokenizer_config.json")
        self.config = read_json(folder, "tokenizer_config.json")
        self.vocab = 1 + max(numbers.values(), default=-1)
        if not 0 < self.vocab <= MOST_VOCAB:
            raise Fault(f"{self.path}: its vocabulary {f'goes to the number {self.vocab - 1}' if numbers else 'is empty'}. {AGAIN}.")
        declared = [end_ids(read_json(folder, name), os.path.join(folder, name)) for name in ("generation_config.json", "config.json")]
        self.end = self.find_end(end_token, declared)
        self.stops = sorted({self.end, *declared[0], *declared[1]})
        self.chat = None
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
            raise Fault(f"{self.path}: the tokenizers package {tokenizers.__version__} cannot {doing}: {error}. {AGAIN}, or a newer package.")

    def ids(self, text, special=False):
        with self.faults(f"tokenize {text[:40]!r}"):
            return self.tokenizer.encode(text, add_special_tokens=special).ids

    def decoded(self, ids, skip=True):
        with self.faults("make a text of tokens"):
            return self.tokenizer.decode(ids, skip_special_tokens=skip)

    def find_end(self, name, declared):
        """The token that ends a document."""
        known = [os.path.join(self.folder, n) for n in ("tokenizer_config.json", "generation_config.json", "config.json")]
        source = "--end-token" if name else known[0]
        name = name or special_token(self.config, "eos_token", self.config_path)
        if name:
            found = self.tokenizer.token_to_id(name)
            if found is None:
                raise Fault(f"{source} names the end token {name!r}, which is no token of {self.folder}/tokenizer.json. Name another: --end-token NAME.",
                            "usage")
            return found
        for ids in declared:
            if len(ids) == 1 and ids[0] < self.vocab and self.tokenizer.id_to_token(ids[0]) is not None:
                return ids[0]
        raise Fault(f"{self.folder}: which token ends a document is not clear: none of {', '.join(known)} names one alone. Say --end-token NAME.", "usage")

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
            raise Fault(f"{self.path}: it has no tokens for any text: {', '.join(map(repr, PROBES))} and the texts of its own tokens come to nothing. {AGAIN}.")
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
            raise Fault(f"{self.path}: its tokens are of bytes, and {lost!r} does not come back from them: not all bytes have a token. {AGAIN}.")

    def cuts_at_lines(self):
        for token in self.tokenizer.get_added_tokens_decoder().values():
            if token.lstrip or token.rstrip or "\n" in token.content:
                return False
        texts = [*PROBES, *(x + "\n" for x in PROBES), *(x + "\n" + y for x in PROBES for y in PROBES)]
        ids = {text: encoding.ids for text, encoding in zip(texts, self.encode_batch(texts, False, False))}
        return all(ids[x + "\n" + y] == ids[x + "\n"] + ids[y] for x in PROBES for y in PROBES)

    def describe(self):
        return {"vocab": self.vocab, "end": self.end, "end_name": self.tokenizer.id_to_token(self.end), "stops": self.stops, "cuts": self.cuts,
                "package": f"tokenizers {tokenizers.__version__}"}

    def ended(self, ids, mask):
        """The ids of a whole document, which ends with the end token, and that counts."""
        if not ids or ids[-1] != self.end:
            ids = ids + [self.end]
            mask = mask + b"\1"
        return ids, mask[:-1] + b"\1"

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
                raise Fault(f"{self.folder}: what the tokenizer puts around a text is not clear, so none can be continued.")
            if part & 1 and part != 3:
                ids, mask = self.frame[0] + ids, b"\0" * len(self.frame[0]) + mask
            if part & 2:
                if part != 3:
                    ids, mask = ids + self.frame[1], mask + b"\0" * len(self.frame[1])
                ids, mask = self.ended(ids, mask)
            answer.append(packed(ids, mask if masked else b""))
        return b"".join(answer)

    def template(self):
        if self.chat is None:
            with bounds():
                self.chat = Template(self.folder, self.config)
        return self.chat

    def encode_chats(self, request):
        """Objects of JSON: the conversation of each as the template renders it, and what of it the model would have said."""
        field, rendered = request.text(), []
        for _ in range(request.number()):
            where = request.text()
            rendered.append(self.template().conversation(where, request.text(), field))
        answer = [struct.pack("<I", len(rendered))]
        for (text, spans), encoding in zip(rendered, self.encode_batch([text for text, _ in rendered], False, True)):
            ids, mask = encoding.ids, mask_of(encoding.offsets, spans)
            if not text.rstrip().endswith(tuple(self.tokenizer.id_to_token(stop) or "\0" for stop in self.stops)):
                ids, mask = self.ended(ids, mask)
            answer.append(packed(ids, mask))
        return b"".join(answer)

    def render_prompt(self, request):
        """The text of messages after which it is the model's turn."""
        where, text, template = request.text(), request.text(), self.template()
        messages = messages_of(where, {"messages": json.loads(text)}, "")
        with bounds():
            rendered = template.render(where, messages, None, True)
        template.check_length(where, rendered, len(text))
        return rendered.encode()

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
        template = self.template()
        with bounds():
            text = template.render("the prompt", json.loads(request.data), None, True)
        template.check_length("the prompt", text, len(request.data))
        return packed(self.ids(text), b"")


TEMPLATE_SECONDS = 20  # of the processor, for a conversation
TEMPLATE_BYTES = 512 << 20
BEGIN, END = "\ufdd0", "\ufdd1"  # no characters: they mark in a rendered text what a template has between {% generation %} and {% endgeneration %}
MARKS = re.compile("[\ufdd0\ufdd1]|\\\\u[fF][dD][dD][01]")
WANTED = ('Every line must be an object with "messages" of "role" and "content", with "instruction", maybe "input", and "output", or with "prompt" and '
          '"completion".')


def refuse(message):
    raise jinja2.exceptions.TemplateError(message)


def give_up(signal_number, frame):
    raise TimeoutError(f"it works for more than {TEMPLATE_SECONDS} s")


@contextlib.contextmanager
def bounds():
    """A template is a program of somebody else's: it has so much of the processor and of memory."""
    with open("/proc/self/statm", encoding="ascii") as file:
        taken = int(file.read().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    if soft == resource.RLIM_INFINITY or taken + TEMPLATE_BYTES < soft:
        resource.setrlimit(resource.RLIMIT_AS, (taken + TEMPLATE_BYTES, hard))
    signal.signal(signal.SIGVTALRM, give_up)
    signal.setitimer(signal.ITIMER_VIRTUAL, TEMPLATE_SECONDS, TEMPLATE_SECONDS)  # again, where jinja2 takes the first for a fault of an expression
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


class Template:
    """A model's chat template, in the surroundings that transformers gives one: names, filters and the treatment of blanks around blocks. The day is not
    among them, since the tokens of a file must not depend on it."""

    def __init__(self, folder, config):
        require(jinja2, "jinja2", missing_templates, "tokenizers jinja2")
        self.name = f"the chat template of {folder}"
        source = self.find(folder, config)
        if not source:
            raise Fault(f"{folder}: the model has no chat template: neither chat_template.jinja nor \"chat_template\" in tokenizer_config.json.", "usage")

        class Marks(jinja2.ext.Extension):
            tags = {"generation"}

            def parse(self, parser):
                line = next(parser.stream).lineno
                body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
                return jinja2.nodes.CallBlock(self.call_method("mark"), [], [], body).set_lineno(line)

            def mark(self, caller):
                return BEGIN + caller() + END

        class Surroundings(jinja2.sandbox.ImmutableSandboxedEnvironment):
            intercepted_binops = frozenset(["**"])

            def call_binop(self, context, operator, left, right):
                if abs(right) > 64:  # one that works for hours, and nothing could end it
                    refuse(f"a power of {right} is too large")
                return super().call_binop(context, operator, left, right)

        surroundings = Surroundings(trim_blocks=True, lstrip_blocks=True, extensions=[Marks, jinja2.ext.loopcontrols])
        surroundings.filters["tojson"] = lambda value, indent=None: json.dumps(value, ensure_ascii=False, indent=indent)
        surroundings.globals["raise_exception"] = refuse
        names = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")
        tokens = {name: special_token(config, name, os.path.join(folder, "tokenizer_config.json")) for name in names}
        surroundings.globals.update({name: text for name, text in tokens.items() if text})
        try:
            self.compiled = surroundings.from_string(source)
        except Exception as error:  # its own complaint, or one of Python, into which it is translated
            raise Fault(f"{self.name} cannot be read: {error or type(error).__name__}. {AGAIN}.")

    @staticmethod
    def find(folder, config):
        path = os.path.join(folder, "chat_template.jinja")
        if os.path.exists(path):
            try:
                with open(path, encoding="utf-8") as file:
                    return file.read()
            except (OSError, ValueError) as error:
                raise Fault(f"{path}: it cannot be read: {error}. {AGAIN}.")
        source = config.get("chat_template")
        if isinstance(source, list) and all(isinstance(one, dict) for one in source):  # several by name
            source = next((one.get("template") for one in source if one.get("name") == "default"), None)
        if source is not None and not is_text(source):
            raise Fault(f'{os.path.join(folder, "tokenizer_config.json")}: "chat_template" is {shown(source)}, and must be a text, or a list of objects with '
                        f'"name" and "template". {AGAIN}.')
        return source

    def marked(self, where, messages, tools, prompt):
        try:
            text = self.compiled.render(messages=messages, tools=tools, documents=None, add_generation_prompt=prompt)
        except Exception as error:  # a template's own complaint, or whatever its expressions come to
            raise Fault(f"{where}: {self.name} fails: {type(error).__name__}: {error}")
        if not is_text(text):
            raise Fault(f"{where}: {self.name} makes halves of surrogate pairs, which are no characters. {AGAIN}.")
        return text

    def render(self, where, messages, tools, prompt):
        return self.marked(where, messages, tools, prompt).replace(BEGIN, "").replace(END, "")

    def check_length(self, where, text, given):
        """Against one that makes more of a conversation than can be tokenized."""
        if len(text) > (1 << 20) + 64 * given:
            raise Fault(f"{where}: {self.name} makes {len(text)} characters of {given} bytes. {AGAIN}.")

    def conversation(self, where, data, field):
        """The rendered text of a line, and what of its characters counts."""
        line = read_line(where, data)
        messages = messages_of(where, line, field)
        with bounds():
            text, spans = self.counted(where, messages, line.get("tools"))
        self.check_length(where, text, len(data))
        if not spans:
            raise Fault(f"{where}: nothing of the conversation is the assistant's, so there is nothing to learn. Remove the line.")
        return text, spans

    def counted(self, where, messages, tools):
        text = self.marked(where, messages, tools, False)
        if BEGIN in text:
            return text.replace(BEGIN, "").replace(END, ""), spans_of(pieces_of(text))
        return text, [self.turn(where, text, messages, tools, k) for k, message in enumerate(messages) if message["role"] == "assistant"]

    def turn(self, where, text, messages, tools, k):
        """The characters of message k: between what the model is given before its turn and the text up to its end."""
        before, after = self.render(where, messages[:k], tools, True), self.render(where, messages[: k + 1], tools, False)
        if not text.startswith(before) or not text.startswith(after) or len(after) < len(before):
            raise Fault(f"{where}: {self.name} renders message {k + 1} otherwise in the whole conversation than as its end, so what the model says there is not "
                        "known. Split the conversation at that message, or mark the assistant's words in the template with {% generation %}.")
        return len(before), len(after)


def read_line(where, data):
    try:
        line = json.loads(data)
    except (RecursionError, ValueError) as error:  # what reads it first takes numbers of any length, and any depth
        raise Fault(f"{where}: it cannot be read: {error}. Remove the line.")
    if MARKS.search(data) and any(mark in json.dumps(line, ensure_ascii=False) for mark in (BEGIN, END)):
        raise Fault(f"{where}: a message holds U+FDD0 or U+FDD1, which are no characters. Remove them.")
    return line


def messages_of(where, line, field):
    """`field` names the key of the messages; "": one of those that conversations are known by."""
    if field and field not in line:
        raise Fault(f"{where}: the object has no \"{field}\", which --field names.")
    if field or "messages" in line:
        messages = line[field or "messages"]
        if not isinstance(messages, list) or not messages:
            raise Fault(f"{where}: \"{field or 'messages'}\" is no list, or an empty one. {WANTED}")
        for k, message in enumerate(messages):
            for key in ("role", "content"):
                if not isinstance(message, dict) or not isinstance(message.get(key), str):
                    raise Fault(f"{where}: message {k + 1} has no string \"{key}\". {WANTED}")
        return messages
    for asked, answered in (("instruction", "output"), ("prompt", "completion")):
        if asked in line or answered in line:
            for key in (asked, answered):
                if not isinstance(line.get(key), str):
                    raise Fault(f"{where}: the object has no string \"{key}\" beside its other one. {WANTED}")
            more = line.get("input") if asked == "instruction" else None
            if more is not None and not isinstance(more, str):
                raise Fault(f"{where}: the \"input\" of the object is no string. {WANTED}")
            question = line[asked] + (f"\n\n{more}" if more else "")
            return [{"role": "user", "content": question}, {"role": "assistant", "content": line[answered]}]
    raise Fault(f"{where}: the object is no conversation. {WANTED}")


def pieces_of(text):
    """A marked text as pieces that count or not."""
    pieces = []
    for at, part in enumerate(text.split(BEGIN)):
        said, _, rest = part.partition(END) if at else ("", "", part)
        pieces += [(1, said), (0, rest)]
    return pieces


def packed(ids, mask):
    return struct.pack("<I", len(ids)) + array("I", ids).tobytes() + mask


def spans_of(pieces):
    """Characters that count, as beginnings and ends."""
    spans, at = [], 0
    for counts, text in pieces:
        if counts and text:
            spans.append((at, at + len(text)))
        at += len(text)
    return spans


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
    require(tokenizers, "tokenizers", missing, "tokenizers jinja2")
    global model
    asked = json.loads(request.data)
    model = Model(asked["folder"], asked["end_token"])
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
    require(tokenizers, "tokenizers", missing, "tokenizers jinja2")
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
              b"begi": lambda request: model.begin_stream(request), b"step": lambda request: model.step_stream(request),
              b"rest": lambda request: model.end_stream(request), b"prom": lambda request: model.encode_prompt(request), b"rend": lambda request: model.render_prompt(request),
              b"lear": learn}

if __name__ == "__main__":
    serve(OPERATIONS)
