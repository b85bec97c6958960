# A model's chat template, for worker.py: conversations as texts, and what of their characters the model would have said.
import contextlib
import importlib.metadata
import json
import os
import re
import resource
import signal

missing_templates = None
try:
    import jinja2
    import jinja2.exceptions
    import jinja2.ext
    import jinja2.sandbox
except ImportError as error:
    jinja2, missing_templates = None, error

OLDEST_JINJA2 = (3, 1, 6)
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


def require_jinja2():
    require(jinja2, "jinja2", missing_templates, PACKAGES)
    version = getattr(jinja2, "__version__", None) or importlib.metadata.version("jinja2")
    numbers = tuple(map(int, re.match(r"[\d.]*\d|", version).group().split("."))) if version[:1].isdigit() else ()
    if numbers < OLDEST_JINJA2:
        wanted = ".".join(map(str, OLDEST_JINJA2))
        raise Fault(f"{sys.executable} has jinja2 {version}, and a chat template, which is a program of somebody else's, can leave its sandbox (CVE-2025-27516). "
                    f"Install {wanted} or newer there: {sys.executable} -m pip install 'jinja2>={wanted}'; or run scripts/setup --tokenizers; or let "
                    "TESSERA_PYTHON name a Python that has it.", "environment")


class Template:
    """A model's chat template, in the surroundings that transformers gives one: names, filters and the treatment of blanks around blocks. The day is not
    among them, since the tokens of a file must not depend on it."""

    def __init__(self, folder, config):
        require_jinja2()
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
                return read_text(path)
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


def spans_of(pieces):
    """Characters that count, as beginnings and ends."""
    spans, at = [], 0
    for counts, text in pieces:
        if counts and text:
            spans.append((at, at + len(text)))
        at += len(text)
    return spans
