# The tokenizer's side of io/tokenizer, after channel.py.
import json
import os
import struct
from array import array

os.environ["TOKENIZERS_PARALLELISM"] = "false"  # a worker is one core's

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


def read_json(folder, name):
    path = os.path.join(folder, name)
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise Fault(f"{path}: it cannot be read: {error}. Get the model's files again.")


def content(token):
    """A special token stands as its text, or as an object with it."""
    return token.get("content") if isinstance(token, dict) else token


def some(ids):
    return [] if ids is None else ids if isinstance(ids, list) else [ids]


class Model:
    """A model's tokenizer, from its folder."""

    def __init__(self, folder, end_token):
        path = os.path.join(folder, "tokenizer.json")
        try:
            self.tokenizer = tokenizers.Tokenizer.from_file(path)
        except Exception as error:  # the library has one kind for all
            raise Fault(f"{path}: the tokenizers package {tokenizers.__version__} cannot read it: {error}. Get the model's files again, or a newer package.")
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        self.folder = folder
        self.config = read_json(folder, "tokenizer_config.json")
        self.vocab = 1 + max(self.tokenizer.get_vocab(with_added_tokens=True).values())
        declared = [read_json(folder, "generation_config.json").get("eos_token_id"), read_json(folder, "config.json").get("eos_token_id")]
        self.end = self.find_end(end_token, declared)
        self.stops = sorted({self.end, *some(declared[0]), *some(declared[1])})
        self.chat = None
        self.find_frame()

    def find_end(self, name, declared):
        """The token that ends a document."""
        known = [os.path.join(self.folder, n) for n in ("tokenizer_config.json", "generation_config.json", "config.json")]
        source = "--end-token" if name else known[0]
        name = name or content(self.config.get("eos_token"))
        if name:
            found = self.tokenizer.token_to_id(name)
            if found is None:
                raise Fault(f"{source} names the end token {name!r}, which is no token of {self.folder}/tokenizer.json. Name another: --end-token NAME.", "usage")
            return found
        for ids in declared:
            if len(some(ids)) == 1 and 0 <= some(ids)[0] < self.vocab:
                return some(ids)[0]
        raise Fault(f"{self.folder}: which token ends a document is not clear: none of {', '.join(known)} names one alone. Say --end-token NAME.", "usage")

    def find_frame(self):
        """What the tokenizer puts around each text, and whether a text may be cut after the end of a line with no token changed."""
        bare, framed = (self.tokenizer.encode("a", add_special_tokens=special).ids for special in (False, True))
        places = [i for i in range(len(framed) - len(bare) + 1) if framed[i : i + len(bare)] == bare]
        self.frame = (framed[: places[0]], framed[places[0] + len(bare) :]) if places else None
        self.cuts = self.frame is not None and self.cuts_at_lines()

    def cuts_at_lines(self):
        for token in self.tokenizer.get_added_tokens_decoder().values():
            if token.lstrip or token.rstrip or "\n" in token.content:
                return False
        lines = ["a", "Z", "7", "it's", ".", ")", "--", "\u00e9", "\u4e2d", "\u0639", "\U0001f600", "\u0915\u093f"]
        ids = {}

        def bare(text):
            if text not in ids:
                ids[text] = self.tokenizer.encode(text, add_special_tokens=False).ids
            return ids[text]

        return all(bare(x + "\n" + y) == bare(x + "\n") + bare(y) for x in lines for y in lines)

    def describe(self):
        return {"vocab": self.vocab, "end": self.end, "end_name": self.tokenizer.id_to_token(self.end), "stops": self.stops, "cuts": self.cuts,
                "package": f"tokenizers {tokenizers.__version__}"}

    def ended(self, ids, mask):
        """The ids of a whole document, which ends with the end token, and that counts."""
        if not ids or ids[-1] != self.end:
            ids = ids + [self.end]
            mask = mask + b"\1"
        return ids, mask[:-1] + b"\1"

    def encode(self, request):
        """Documents or parts of them: each what of a document it has (1 its beginning, 2 its end) and its pieces of text, which count or not."""
        masked, documents = request.number("<B"), []
        for _ in range(request.number()):
            part = request.number("<B")
            documents.append((part, [(request.number("<B"), request.text()) for _ in range(request.number())]))
        texts = ["".join(text for _, text in pieces) for _, pieces in documents]
        whole = [part == 3 for part, _ in documents]
        encode = self.tokenizer.encode_batch if masked else self.tokenizer.encode_batch_fast
        if all(whole) or not any(whole):
            encodings = encode(texts, add_special_tokens=all(whole))
        else:
            encodings = [encode([text], add_special_tokens=w)[0] for text, w in zip(texts, whole)]
        answer = [struct.pack("<I", len(texts))]
        for (part, pieces), encoding in zip(documents, encodings):
            ids = encoding.ids
            mask = mask_of(encoding.offsets, spans_of(pieces)) if masked else b""
            if part & 1 and part != 3:
                if self.frame is None:
                    raise Fault(f"{self.folder}: what the tokenizer puts around a text is not clear, so none can be continued.")
                ids, mask = self.frame[0] + ids, b"\0" * len(self.frame[0]) + mask
            if part & 2:
                if part != 3:
                    ids = ids + self.frame[1]
                ids, mask = self.ended(ids, mask)
            answer.append(packed(ids, mask if masked else b""))
        return b"".join(answer)


    def template(self):
        if self.chat is None:
            self.chat = Template(self.folder, self.config)
        return self.chat

    def encode_chats(self, request):
        """Objects of JSON: the conversation of each as the template renders it, and what of it the model would have said."""
        field, rendered = request.text(), []
        for _ in range(request.number()):
            where = request.text()
            rendered.append(self.template().conversation(where, json.loads(request.text()), field))
        answer = [struct.pack("<I", len(rendered))]
        for (text, spans), encoding in zip(rendered, self.tokenizer.encode_batch([text for text, _ in rendered], add_special_tokens=False)):
            ids, mask = encoding.ids, mask_of(encoding.offsets, spans)
            if not text.rstrip().endswith(tuple(self.tokenizer.id_to_token(stop) or "\0" for stop in self.stops)):
                ids, mask = self.ended(ids, mask)
            answer.append(packed(ids, mask))
        return b"".join(answer)

    def render_prompt(self, request):
        """The text of messages after which it is the model's turn."""
        where = request.text()
        messages = messages_of(where, {"messages": json.loads(request.text())}, "")
        return self.template().render(where, messages, None, True).encode()

    def begin_stream(self, request):
        """The prompt's ids, after which tokens come one by one."""
        ids = array("I", request.data)
        self.ids, self.before, self.shown = list(ids), max(0, len(ids) - 8), len(ids)
        return b""

    def step_stream(self, request):
        """The text that one token more adds, once its characters are whole; what the tokens just before it come to is not said again."""
        self.ids.append(request.number())
        text = self.tokenizer.decode(self.ids[self.before :])
        return b"" if text.endswith("\ufffd") else self.new_text(text)

    def end_stream(self, request):
        return self.new_text(self.tokenizer.decode(self.ids[self.before :]))

    def new_text(self, text):
        known = len(self.tokenizer.decode(self.ids[self.before : self.shown]))
        if len(text) > known:
            self.before, self.shown = self.shown, len(self.ids)
        return text[known:].encode()

    def encode_prompt(self, request):
        """The ids of messages after which it is the model's turn."""
        text = self.template().render("the prompt", json.loads(request.data), None, True)
        return packed(self.tokenizer.encode(text, add_special_tokens=False).ids, b"")


BEGIN, END = "\ufdd0", "\ufdd1"  # no characters: they mark in a rendered text what a template has between {% generation %} and {% endgeneration %}
WANTED = ('Every line must be an object with "messages" of "role" and "content", with "instruction", maybe "input", and "output", or with "prompt" and '
          '"completion".')


def refuse(message):
    raise jinja2.exceptions.TemplateError(message)


class Template:
    """A model's chat template, in the surroundings that transformers gives one: names, filters and the treatment of blanks around blocks. The day is not
    among them, since the tokens of a file must not depend on it."""

    def __init__(self, folder, config):
        require(jinja2, "jinja2", missing_templates, "tokenizers jinja2")
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

        surroundings = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Marks, jinja2.ext.loopcontrols])
        surroundings.filters["tojson"] = lambda value, indent=None: json.dumps(value, ensure_ascii=False, indent=indent)
        surroundings.globals["raise_exception"] = refuse
        names = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")
        surroundings.globals.update({name: content(config[name]) for name in names if config.get(name)})
        self.name = f"the chat template of {folder}"
        try:
            self.compiled = surroundings.from_string(source)
        except jinja2.exceptions.TemplateError as error:
            raise Fault(f"{self.name} cannot be read: {error}. Get the model's files again.")

    @staticmethod
    def find(folder, config):
        path = os.path.join(folder, "chat_template.jinja")
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                return file.read()
        source = config.get("chat_template")
        if isinstance(source, list):  # several by name
            source = next((one.get("template") for one in source if one.get("name") == "default"), None)
        return source

    def marked(self, where, messages, tools, prompt):
        try:
            return self.compiled.render(messages=messages, tools=tools, documents=None, add_generation_prompt=prompt)
        except Exception as error:  # a template's own complaint, or whatever its expressions come to
            raise Fault(f"{where}: {self.name} fails: {type(error).__name__}: {error}")

    def render(self, where, messages, tools, prompt):
        return self.marked(where, messages, tools, prompt).replace(BEGIN, "").replace(END, "")

    def conversation(self, where, line, field):
        """The rendered text, and what of its characters counts."""
        messages = messages_of(where, line, field)
        tools, text = line.get("tools"), self.marked(where, messages, line.get("tools"), False)
        spans = spans_of(pieces_of(text)) if BEGIN in text else None
        text = text.replace(BEGIN, "").replace(END, "")
        if spans is None:
            spans = [self.turn(where, text, messages, tools, k) for k, message in enumerate(messages) if message["role"] == "assistant"]
        if not spans:
            raise Fault(f"{where}: nothing of the conversation is the assistant's, so there is nothing to learn. Remove the line.")
        return text, spans

    def turn(self, where, text, messages, tools, k):
        """The characters of message k: between what the model is given before its turn and the text up to its end."""
        before, after = self.render(where, messages[:k], tools, True), self.render(where, messages[: k + 1], tools, False)
        if not text.startswith(before) or not text.startswith(after) or len(after) < len(before):
            raise Fault(f"{where}: {self.name} renders message {k + 1} otherwise in the whole conversation than as its end, so what the model says there is not "
                        "known. Split the conversation at that message, or mark the assistant's words in the template with {% generation %}.")
        return len(before), len(after)


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
        if any(mark in message["content"] for message in messages for mark in (BEGIN, END)):
            raise Fault(f"{where}: a message holds U+FDD0 or U+FDD1, which are no characters. Remove them.")
        return messages
    for asked, answered in (("instruction", "output"), ("prompt", "completion")):
        if asked in line or answered in line:
            for key in (asked, answered):
                if not isinstance(line.get(key), str):
                    raise Fault(f"{where}: the object has no string \"{key}\" beside its other one. {WANTED}")
            more = line.get("input") if asked == "instruction" else None
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
