"""The worker that reads a model's tokenizer (io/tokenizer) in this process, with inputs of tokenizer_inputs.py in place of its socket; and what must hold of
its answers."""
import io
import json
import os
import re
import struct
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCES = os.path.join(HERE, "..", "..", "io", "tokenizer")
LONGEST_MESSAGE = 3000
TEMPLATE_SECONDS = 0.15  # in place of the worker's own
FOLDER = "model"  # of the working directory
USUAL = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
# What the program says of a tokenizer's class (io/tokenizer/tokenizer_class.cpp).
BUILT = ("LlamaTokenizer", "GemmaTokenizer", "GPT2Tokenizer", "Qwen2Tokenizer", "GPTNeoXTokenizer", "CohereTokenizer")
CLASSES = {**{name: (name, USUAL, "") for name in BUILT}, "CodeLlamaTokenizer": ("CodeLlamaTokenizer", USUAL, "bos_token")}


class Finding(Exception):
    """What must not be."""


class Answered(BaseException):
    """The worker wants the next request."""


class Worker:
    """`edges`: the pairs of its lines that followed each other; `messages`: the kinds of what it said; `said`: that of the last input."""

    def __init__(self):
        self.names = {"__name__": "worker"}
        self.edges, self.messages, self.said, self.traced, self.last = set(), set(), [], set(), None
        for name in ("channel.py", "model_files.py", "class_pipeline.py", "conversation.py", "chat_template.py", "preferences.py",
                     "worker.py"):
            with open(os.path.join(SOURCES, name), encoding="utf-8") as file:
                exec(compile(file.read(), name, "exec"), self.names)
            self.traced.add(name)
        self.names.update(receive=self.receive, send=self.send, TEMPLATE_SECONDS=TEMPLATE_SECONDS)

    def receive(self, count):
        if not self.waiting:
            raise Answered
        return bytearray(self.waiting.pop(0))

    def send(self, word, payload):
        self.answer = word, bytes(payload)

    def trace(self, frame, event, _):
        return self.trace_line if frame.f_code.co_filename in self.traced else None

    def trace_line(self, frame, event, _):
        if event == "line":
            here = (frame.f_code.co_filename, frame.f_lineno)
            self.edges.add((self.last, here))
            self.last = here
        return self.trace_line

    def ask(self, operation, payload):
        """The answer, or None where the worker refuses, as it may."""
        self.waiting, self.answer, self.last = [operation + struct.pack("<Q", len(payload)), payload], None, operation
        sys.settrace(self.trace)
        try:
            self.names["serve"](self.names["OPERATIONS"])
        except Answered:
            pass
        except BaseException as error:
            sys.settrace(None)
            raise Finding(f"{operation}: {type(error).__name__}: {str(error)[:500]}, at {place_of(error)}")
        finally:
            sys.settrace(None)
        word, answer = self.answer
        if word == b"done":
            return answer
        self.check_refusal(operation, json.loads(answer))
        return None

    def check_refusal(self, operation, fault):
        message = fault["message"]
        self.said.append((operation, fault["kind"], message))
        self.messages.add((operation, fault["kind"], kind_of(message)))
        if fault["kind"] not in ("data", "usage"):
            raise Finding(f"{operation} ends with the kind {fault['kind']}: {message[:1500]}")
        try:
            message.encode()
        except UnicodeEncodeError:
            raise Finding(f"{operation}: the message is no text: {message[:500]!r}")
        if not message.isprintable() or len(message) > LONGEST_MESSAGE or not message:
            raise Finding(f"{operation}: the message has {len(message)} characters, or some that are none: {message[:500]!r}")
        if FOLDER not in message and "chat.jsonl:" not in message and "--end-token" not in message:
            raise Finding(f"{operation}: the message names no file: {message[:500]}")
        if "Traceback" in message:
            raise Finding(f"{operation}: the message shows the program's inside: {message[:500]}")


def place_of(error):
    at, places = error.__traceback__, []
    while at:
        places.append(f"{os.path.basename(at.tb_frame.f_code.co_filename)}:{at.tb_lineno}")
        at = at.tb_next
    return " ".join(places[-4:])


def kind_of(message):
    """A message without what differs from input to input."""
    message = re.sub(r"'[^']*'|\"[^\"]*\"|`[^`]*[^`a-zA-Z_][^`]*`|[^\x20-\x7e]+", "_", message)
    return re.sub(r"[0-9]+", "N", message)[:200]


def text_of(value):
    """As a request has it, which is UTF-8."""
    return value.encode(errors="replace") if isinstance(value, str) else b""


def sized(text):
    return struct.pack("<I", len(text)) + text


def documents_request(masked, documents):
    """`documents`: (1 its beginning and 2 its end, [(counts, text), ...])."""
    request = [struct.pack("<BI", masked, len(documents))]
    for part, pieces in documents:
        request.append(struct.pack("<BI", part, len(pieces)))
        request += [struct.pack("<B", counts) + sized(text) for counts, text in pieces]
    return b"".join(request)


def numbers(stream, count):
    data = stream.read(4 * count)
    if len(data) != 4 * count:
        raise Finding("an answer is cut")
    return list(struct.unpack(f"<{count}I", data))


def encoded(answer, masked):
    """[(ids, mask), ...] of an answer."""
    stream, all_of_them = io.BytesIO(answer), []
    for _ in range(numbers(stream, 1)[0]):
        ids = numbers(stream, numbers(stream, 1)[0])
        mask = stream.read(len(ids)) if masked else b""
        if masked and (len(mask) != len(ids) or mask.strip(b"\0\1")):
            raise Finding(f"a mask of {len(mask)} for {len(ids)} ids: {mask[:40]}")
        all_of_them.append((ids, mask))
    if stream.read(1):
        raise Finding("an answer has more after its end")
    return all_of_them


def check_facts(facts):
    vocab, end, stops = facts["vocab"], facts["end"], facts["stops"]
    for number in (vocab, end, *stops):
        if type(number) is not int:
            raise Finding(f"{number!r} of {facts} is no number")
    if not 0 < vocab <= 2**31 - 1 or not 0 <= end < vocab or end not in stops or not all(0 <= stop < 2**31 for stop in stops):
        raise Finding(f"numbers are out of their range: {facts}")
    if not isinstance(facts["end_name"], str) or type(facts["cuts"]) is not bool:
        raise Finding(f"the end token has no name: {facts}")


def check_ids(ids, facts):
    if ids and max(ids) >= facts["vocab"]:
        raise Finding(f"the id {max(ids)} is beyond the vocabulary of {facts['vocab']}")


def says_byte_level(tokenizer):
    """Whether each text must come back from its ids: all of the text goes through letters that stand for bytes."""
    try:
        states = [json.loads(part.__getstate__()) if part is not None else None for part in (tokenizer.normalizer, tokenizer.pre_tokenizer, tokenizer.decoder)]
    except Exception:
        return False
    normalizer, before, decoder = states
    steps = before["pretokenizers"] if before and before["type"] == "Sequence" else [before]
    if normalizer is not None or not before or not decoder or decoder["type"] != "ByteLevel":
        return False
    if not steps or steps[-1]["type"] != "ByteLevel" or steps[-1]["add_prefix_space"]:
        return False
    keeps = all(step["type"] == "Split" and step["behavior"] != "Removed" for step in steps[:-1])
    return keeps and not any(token.lstrip or token.rstrip for token in tokenizer.get_added_tokens_decoder().values())


def check_documents(worker, facts, asked):
    texts = [text_of(text) for text in asked["texts"]]
    pieces = [[(0, text[: len(text) // 2]), (1, text[len(text) // 2 :])] if text.isascii() else [(1, text)] for text in texts]
    tokenizer = worker.names["model"].tokenizer
    for masked in (0, 1):
        answer = worker.ask(b"text", documents_request(masked, [(3, parts) for parts in pieces]))
        for text, (ids, mask) in zip(texts, encoded(answer, masked) if answer is not None else []):
            check_ids(ids, facts)
            if not ids or ids[-1] != facts["end"] or masked and mask[-1] != 1:
                raise Finding(f"the end token is missing after {text!r}: {ids[-9:]}")
            inside = tokenizer.decode(ids, skip_special_tokens=False)
            if says_byte_level(tokenizer) and text.decode() not in inside:
                raise Finding(f"{text!r} comes back as {inside!r}")
        answer = worker.ask(b"text", documents_request(masked, [(part % 4, parts) for part, parts in enumerate(pieces)]))
        for ids, _ in encoded(answer, masked) if answer is not None else []:
            check_ids(ids, facts)


def check_chats(worker, facts, asked):
    for k, line in enumerate(asked["lines"]):
        line = text_of(line)
        if not is_json_object(line):
            continue
        answer = worker.ask(b"chat", sized(text_of(asked["field"])) + struct.pack("<II", 0, 1) + sized(f"chat.jsonl:{k + 1}".encode()) + sized(line))
        for ids, _ in encoded(without_unused(answer), True) if answer is not None else []:
            check_ids(ids, facts)
        if answer is None and "it runs for more than" in worker.said[-1][2]:
            break  # so would the next


def without_unused(answer):
    """An answer begins with the keys that were of no use, as a text of JSON."""
    (length,) = struct.unpack_from("<I", answer)
    json.loads(answer[4 : 4 + length])
    return answer[4 + length :]


def is_json_object(line):
    """Others are refused before a worker sees them."""
    try:
        json.dumps(json.loads(line), allow_nan=False, ensure_ascii=False).encode()
    except RecursionError:
        return True
    except ValueError as error:
        return "Exceeds the limit" in str(error)  # of digits, which are Python's own
    return line.lstrip()[:1] == b"{"


def check_prompt(worker, facts, asked):
    messages = [{"role": "system", "content": text_of(asked["system"]).decode()}, {"role": "user", "content": text_of(asked["message"]).decode()}]
    answer = worker.ask(b"prom", json.dumps(messages, ensure_ascii=False).encode())
    ids = [2, 1, 0, 5, 7]
    if answer is not None:
        ids = encoded(struct.pack("<I", 1) + answer, False)[0][0]
        check_ids(ids, facts)
    if worker.ask(b"begi", struct.pack(f"<{len(ids)}I", *ids)) is None:
        return
    said = b"".join(worker.ask(b"step", struct.pack("<I", number)) or b"" for number in [*ids[-9:], 0, facts["vocab"] - 1, facts["vocab"], 2**31 - 1,
                                                                                         facts["end"]])
    said += worker.ask(b"rest", b"") or b""
    try:
        said.decode()
    except UnicodeDecodeError:
        raise Finding(f"what is said is no text: {said[:200]}")


def asked_of(data):
    """As many of the questions as the input has rightly."""
    try:
        asked = json.loads(data)
    except (ValueError, RecursionError):
        asked = {}
    asked = asked if isinstance(asked, dict) else {}
    listed = {name: value[:8] if isinstance(value := asked.get(name), list) else [] for name in ("texts", "lines")}
    return {**{name: asked.get(name) for name in ("end_token", "field", "system", "message", "class")}, **listed}


def try_input(worker, files):
    """Asks everything of an input that lies in FOLDER; whether the tokenizer is taken. Finding: what must not be."""
    worker.said.clear()
    asked = asked_of(files.get("asked.json", b""))
    of_class = dict(zip(("class", "class_tokens", "framed_by"), CLASSES.get(str(asked["class"]), ("", {}, ""))))
    opened = {"folder": FOLDER, "end_token": text_of(asked["end_token"]).decode(), "chat_template": "", "chat_template_text": "", "our_templates": []}
    answer = worker.ask(b"open", json.dumps({**opened, **of_class}).encode())
    if answer is None:
        return False
    facts = json.loads(answer)
    check_facts(facts)
    check_documents(worker, facts, asked)
    check_chats(worker, facts, asked)
    check_prompt(worker, facts, asked)
    return True
