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
    import jinja2.meta
    import jinja2.nodes
    import jinja2.sandbox
except ImportError as error:
    jinja2, missing_templates = None, error

OLDEST_JINJA2 = (3, 1, 6)
TEMPLATE_SECONDS = 20  # of the processor, for a conversation
TEMPLATE_BYTES = 512 << 20


def refuse(message):
    raise jinja2.exceptions.TemplateError(message)


def give_up(signal_number, frame):
    raise TimeoutError(f"it runs for more than {TEMPLATE_SECONDS} s")


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
        raise Fault(f"{sys.executable} has jinja2 {version}, and a chat template, which is foreign code, can leave its sandbox "
                    f"(CVE-2025-27516). "
                    f"Install {wanted} or newer there: {sys.executable} -m pip install 'jinja2>={wanted}'; or run scripts/setup "
                    f"--tokenizers; or let "
                    "TESSERA_PYTHON name a Python that has it.", "environment")


class Template:
    """A model's chat template, in the surroundings that transformers gives one: names, filters and the treatment of blanks around blocks. The day is not
    among them, since the tokens of a file must not depend on it."""

    def __init__(self, name, source, tokens):
        """`name`: for messages; `tokens`: the texts of special tokens by name."""
        self.name, self.tokens = name, tokens

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
        surroundings.filters["tojson"] = as_json
        surroundings.globals["raise_exception"] = refuse
        try:
            self.compiled = surroundings.from_string(source)
            tree = surroundings.parse(source)
            self.variables = jinja2.meta.find_undeclared_variables(tree)
            keys = {"role", "content", *(node.attr for node in tree.find_all(jinja2.nodes.Getattr) if not isinstance(node.node, jinja2.nodes.Getattr)),
                    *(node.value for node in tree.find_all(jinja2.nodes.Const) if isinstance(node.value, str))}
            self.keys = keys.union(REASONING if keys.intersection(REASONING) else ())
        except Exception as error:  # its own complaint, or one of Python, into which it is translated
            raise Fault(f"{self.name} cannot be read: {error or type(error).__name__}. {AGAIN}.")

    def marked(self, where, messages, chat, prompt):
        try:
            text = self.compiled.render(**{**self.tokens, **chat.variables}, messages=messages, tools=chat.tools, documents=chat.documents,
                                        add_generation_prompt=prompt)
        except Exception as error:  # a template's own complaint, or whatever its expressions come to
            advice = ""
            if "'strftime_now' is undefined" in str(error):
                advice = (". It writes the current day, but the tokens of a file must not depend on it. Copy it to a file, replace "
                          "strftime_now(...) by a date, and name that file: --chat-template FILE.")
            raise Fault(f"{where}: {self.name} fails: {type(error).__name__}: {error}{advice}")
        if not is_text(text):
            raise Fault(f"{where}: {self.name} makes halves of surrogate pairs, which are not characters. {AGAIN}.")
        return text

    def render(self, where, messages, chat, prompt):
        return self.marked(where, messages, chat, prompt).replace(BEGIN, "").replace(END, "")

    def check_length(self, where, text, given):
        """Against one that makes more of a conversation than can be tokenized."""
        if len(text) > (1 << 20) + 64 * given:
            raise Fault(f"{where}: {self.name} makes {len(text)} characters of {given} bytes. {AGAIN}.")

    def prompt(self, where, chat, given):
        """The text of messages after which it is the model's turn."""
        with bounds():
            self.check_line(where, chat, frozenset())
            text = self.render(where, chat.messages, chat, True)
            self.check_messages(where, chat, text, frozenset(), True)
        self.check_length(where, text, given)
        return text

    def conversation(self, where, chat, given, ignored):
        """The rendered text of a conversation of so many bytes, what of its characters counts, and which keys were of no use. `ignored`: keys that may be."""
        with bounds():
            unused = self.check_line(where, chat, ignored)
            try:
                text, spans = self.counted(where, chat)
            except Fault:
                if chat.as_given is None:
                    raise
                chat.messages = chat.as_given  # some templates make a text of the arguments of calls, others take one
                text, spans = self.counted(where, chat)
            unused |= self.check_messages(where, chat, text, ignored)
        self.check_length(where, text, given)
        if not spans:
            roles = ", ".join(dict.fromkeys(message["role"] for message in chat.messages))
            answers = any(message["role"] == "assistant" for message in chat.messages)
            silent = ", but all of the assistant's messages are set not to count" if answers else ""
            raise Fault(f'{where}: no message of the assistant{" counts" if silent else ""}, so there is nothing to learn: the roles are '
                        f'{roles}{silent}. Remove the line, or call who answers "assistant".')
        return text, spans, unused

    def completed(self, where, chat, prompt, given, ignored):
        """The text of the first `prompt` messages, after which it is the model's turn, that of all, and which keys were of no use."""
        with bounds():
            unused = self.check_line(where, chat, ignored)
            try:
                texts = self.before_and_after(where, chat, prompt)
            except Fault:
                if chat.as_given is None:
                    raise
                chat.messages = chat.as_given  # as in conversation()
                texts = self.before_and_after(where, chat, prompt)
            unused |= self.check_messages(where, chat, texts[1], ignored)
        for text in texts:
            self.check_length(where, text, given)
        return *texts, unused

    def before_and_after(self, where, chat, prompt):
        return self.render(where, chat.messages[:prompt], chat, True), self.render(where, chat.messages, chat, False)

    def check_line(self, where, chat, ignored):
        """Of what a line has beside messages, nothing is left out without a word. Answers what was of no use."""
        for name, value in (("tools", chat.tools), ("documents", chat.documents)):
            if value and name not in self.variables and name not in ignored:
                raise Fault(f"{where}: {self.name} does not read {name}, so the model would not see the \"{name}\" of the line. Take a "
                            f"template that does "
                            f"(--chat-template FILE), or leave them out: --ignore {name}.")
        unread = [name for name in chat.variables if name not in self.variables]
        if unread:
            raise Fault(f'{where}: {self.name} does not read {", ".join(unread)}, which "chat_template_kwargs" gives. Leave it out.')
        unknown = [key for key in chat.left if key not in ABOUT_A_LINE and key not in ignored]
        if unknown:
            given = [key for key in unknown if key in self.variables]
            advice = f'For the template, put {", ".join(given)} in "chat_template_kwargs".' if given else \
                'Put tools into "tools", and values for the template into "chat_template_kwargs".'
            raise Fault(f"{where}: this program does not know {quoted(unknown)} beside the messages. {advice} Where it is not for the "
                        f"model: --ignore "
                        f"{','.join(unknown)}.")
        return set(chat.left)

    def check_messages(self, where, chat, text, ignored, prompt=False):
        """Nor of what messages have: keys that the template does not read, and messages of which it makes nothing."""
        unused = set()
        for k, message in enumerate(chat.messages):
            unread = [key for key, value in message.items() if key not in self.keys and value not in ("", [], {})]
            if unread and self.without(where, chat, k, {key: value for key, value in message.items() if key not in unread}, prompt) == text:
                unknown = [key for key in unread if key not in ABOUT_A_MESSAGE and key not in ignored]
                if unknown:
                    raise Fault(f"{where}: message {k + 1}: {self.name} does not read {quoted(unknown)}, so the model would not see it. "
                                f"Take a template that does "
                                f"(--chat-template FILE), or leave it out: --ignore {','.join(unknown)}.")
                unused.update(unread)
            said = message.get("content", "").strip()
            if (said or message.get("tool_calls")) and (message["role"] not in ("user", "assistant") or said not in text) and \
                    self.without(where, chat, k, None, prompt) == text:
                raise Fault(f"{where}: message {k + 1}, of the role {shown(message['role'])}, does not occur in the text that {self.name} "
                            f"makes. Give it a role "
                            "that the template has, or leave the message out.")
        return unused

    def without(self, where, chat, k, message, prompt):
        """The text with another message k, or with none; None where the template does not render that."""
        messages = [*chat.messages[:k], *([message] if message else []), *chat.messages[k + 1 :]]
        try:
            return self.render(where, messages, chat, prompt)
        except Fault:
            return None

    def counted(self, where, chat):
        text, counting = self.marked(where, chat.messages, chat, False), chat.counting()
        if BEGIN not in text:
            return text, [self.turn(where, text, chat, k) for k in counting]
        pieces = pieces_of(text)
        answers = [k for k, message in enumerate(chat.messages) if message["role"] == "assistant"]
        if answers != counting:
            marked = text.count(BEGIN)
            if marked != len(answers):
                raise Fault(f"{where}: some of the assistant's messages must not count, but {self.name} marks {marked} pieces of a text "
                            f"for {len(answers)} of "
                            "them, so they cannot be told apart. Split the conversation.")
            turns = iter(answers)
            pieces = [(counts and next(turns) in counting, said) for counts, said in pieces]
        return text.replace(BEGIN, "").replace(END, ""), spans_of(pieces)

    def turn(self, where, text, chat, k):
        """The characters of message k: between what the model is given before its turn and the text up to its end."""
        before, after = self.render(where, chat.messages[:k], chat, True), self.render(where, chat.messages[: k + 1], chat, False)
        if not text.startswith(before) or not text.startswith(after) or len(after) < len(before):
            raise Fault(f"{where}: {self.name} renders message {k + 1} differently in the whole conversation and at its end, so the "
                        f"model's words in it cannot be found. Split the conversation at that message, or mark the assistant's words in "
                        "the template with {% generation %}.")
        return len(before), len(after)


class Templates:
    """Those of a model by name, or the one that the user named."""

    def __init__(self, folder, config, chosen, text, ours):
        """`chosen`: a name, "" for what the model has; `text`: of a template that is not the model's, "" where there is no such; `ours`: names of those that
        come with the program."""
        require_jinja2()
        self.folder, self.made = folder, {}
        own = own_templates(folder, config)
        if chosen and chosen in own:
            self.sources = {"default": own[chosen]}
        elif chosen and not text:
            raise Fault(f"--chat-template {chosen}: {folder} has no chat template of this name "
                        f"({', '.join(sorted(own)) or 'it has none'}), the program has "
                        f"{', '.join(ours)}, and there is no such file.", "usage")
        else:
            self.sources = {"default": text} if chosen else own
        self.named = f"the chat template {chosen}" if chosen else f"the chat template of {folder}"
        if not self.sources:
            raise Fault(f"{folder}: the model has no chat template: neither chat_template.jinja nor \"chat_template\" in "
                        f"tokenizer_config.json. Name one: "
                        f"--chat-template with {', '.join(ours)}, or a file.", "usage")
        self.tokens = template_tokens(config, os.path.join(folder, "tokenizer_config.json"))

    def of(self, tools):
        """The one that transformers takes: where there are tools, that of this name."""
        name = "tool_use" if tools is not None and "tool_use" in self.sources else "default"
        if name not in self.sources:
            raise Fault(f"{self.folder}: the model has several chat templates, and none is called default: "
                        f"{', '.join(sorted(self.sources))}. Name one: "
                        "--chat-template NAME.", "usage")
        if name not in self.made:
            with bounds():
                self.made[name] = Template(self.named + (f" ({name})" if name != "default" else ""), self.sources[name], self.tokens)
        return self.made[name]


def own_templates(folder, config):
    """A model's templates by name. Files come before what tokenizer_config.json has, as in transformers."""
    more = os.path.join(folder, "additional_chat_templates")
    try:
        names = sorted(name for name in os.listdir(more) if name.endswith(".jinja"))
    except FileNotFoundError:
        names = []
    except OSError as error:
        raise Fault(f"{more}: it cannot be read: {error}. {AGAIN}.")
    paths = {"default": os.path.join(folder, "chat_template.jinja"), **{name[: -len(".jinja")]: os.path.join(more, name) for name in names}}
    found = {name: read_template(path) for name, path in paths.items() if os.path.lexists(path)}
    if found:
        return found
    name = "tokenizer_config.json"
    source = config.get("chat_template")
    if source is None:
        name = "chat_template.json"  # that of a processor
        source = read_json(folder, name).get("chat_template")
    if isinstance(source, list) and all(isinstance(one, dict) and isinstance(one.get("name"), str) for one in source):
        source = {one["name"]: one.get("template") for one in source}
    sources = {} if source is None else source if isinstance(source, dict) else {"default": source}
    for text in sources.values():
        if not is_text(text):
            raise Fault(f'{os.path.join(folder, name)}: "chat_template" is {shown(text)}, and must be a text, or a list of objects with '
                        f'"name" and "template". '
                        f"{AGAIN}.")
    return sources


def read_template(path):
    try:
        return read_text(path)
    except (OSError, ValueError) as error:
        raise Fault(f"{path}: it cannot be read: {error}. {AGAIN}.")


def template_tokens(config, path):
    """The texts of special tokens: those that every tokenizer may have, and a model's own."""
    tokens = {name: special_token(config, name, path) for name in NAMED_TOKENS}
    more = config.get("extra_special_tokens")
    for some in (config, more if isinstance(more, dict) else {}):
        for name, token in some.items():
            text = token.get("content") if isinstance(token, dict) else token
            if name not in NAMED_TOKENS and is_text(text) and (some is not config or name.endswith("_token")):
                tokens[name] = text
    return {name: text for name, text in tokens.items() if text}


def as_json(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def quoted(keys):
    return ", ".join(f'"{key}"' for key in keys)


def pieces_of(text):
    """A marked text as pieces that count or not."""
    first, *marked = text.split(BEGIN)
    pieces = [(0, first)]
    for part in marked:
        said, _, rest = part.partition(END)
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
