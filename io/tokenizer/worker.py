# The tokenizer's side of io/tokenizer: started by the binary, of which this text is a part, with a socket as standard input. A request is four
# letters, the length of what follows (uint64, little-endian) and that; so is its answer, whose letters are "done" or "fail".
import sys

sys.path = [folder for folder in sys.path if folder]  # what lies in the folder of the run is not ours to import

import json
import os
import signal
import struct
from array import array

CHANNEL = os.dup(0)
os.dup2(2, 1)  # a library that prints must not print into an answer
signal.signal(signal.SIGINT, signal.SIG_IGN)  # who started us decides: we end with the socket
os.environ["TOKENIZERS_PARALLELISM"] = "false"  # a worker is one core's


class Fault(Exception):
    """What the user is told. `kind` becomes the exit status."""

    def __init__(self, message, kind="data"):
        super().__init__(message)
        self.kind = kind


try:
    import tokenizers
except ImportError as error:
    tokenizers, missing = None, error


def receive(count):
    data = bytearray(count)
    view = memoryview(data)
    while count:
        got = os.readv(CHANNEL, [view[len(data) - count :]])
        if got == 0:
            sys.exit(0)
        count -= got
    return data


def send(word, payload):
    view = memoryview(word + struct.pack("<Q", len(payload)) + payload)
    while view:
        view = view[os.write(CHANNEL, view) :]


class Reader:
    """Numbers and texts of a request, front to back."""

    def __init__(self, data):
        self.data, self.at = data, 0

    def number(self, form="<I"):
        (value,) = struct.unpack_from(form, self.data, self.at)
        self.at += struct.calcsize(form)
        return value

    def text(self):
        length = self.number()
        self.at += length
        return self.data[self.at - length : self.at].decode()


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
                ids, mask = self.frame[0] + ids, b"\0" * len(self.frame[0]) + mask
            if part & 2:
                if part != 3:
                    ids = ids + self.frame[1]
                ids, mask = self.ended(ids, mask)
            answer.append(packed(ids, mask if masked else b""))
        return b"".join(answer)


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
    if tokenizers is None:
        raise Fault(f"{sys.executable} cannot import tokenizers ({missing}). Install it there: {sys.executable} -m pip install tokenizers jinja2; or let TESSERA_PYTHON name a Python that has it.", "environment")
    global model
    asked = json.loads(request.data)
    model = Model(asked["folder"], asked["end_token"])
    return json.dumps(model.describe()).encode()


model = None
OPERATIONS = {b"open": open_model, b"text": lambda request: model.encode(request)}


def answer_one():
    head = receive(12)
    request = Reader(receive(struct.unpack("<Q", head[4:])[0]))
    try:
        send(b"done", OPERATIONS[bytes(head[:4])](request))
    except Fault as fault:
        send(b"fail", json.dumps({"kind": fault.kind, "message": str(fault)}).encode())


if __name__ == "__main__":
    while True:
        answer_one()
