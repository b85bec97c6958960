# What a line of conversations holds, for chat_template.py: everything in it is used, known to be of no use, or refused by its name.
import json
import re

BEGIN, END = "\ufdd0", "\ufdd1"  # no characters: they mark in a rendered text what a template has between {% generation %} and {% endgeneration %}
MARKS = re.compile("[\ufdd0\ufdd1]|\\\\u[fF][dD][dD][01]")
WANTED = ('Every line must be an object with "messages" of "role" and "content", with "conversations" of "from" and "value", with '
          '"instruction", maybe "input", '
          'and "output", or with "prompt" and "completion".')
LISTS = ("messages", "conversations")  # keys under which messages stand
PAIRS = (("instruction", "output"), ("prompt", "completion"))
# What says something of a line, or of a message, and is not for the model.
ABOUT_A_LINE = frozenset("id idx index uuid guid key row hash md5 sha256 source sources dataset dataset_name subset split origin url uri "
                         "license meta metadata category "
                         "categories domain topic topics tag tags task task_name task_type type language lang locale model model_name "
                         "generator created created_at "
                         "timestamp date version author annotator score scores rating quality num_turns num_tokens token_count "
                         "length".split())
ABOUT_A_MESSAGE = frozenset("name tool_call_id id uuid index turn timestamp created created_at date source model model_name author "
                            "language lang score rating "
                            "num_tokens token_count".split())
SPEAKERS = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "chatgpt": "assistant", "bard": "assistant", "bing": "assistant",
            "model": "assistant", "system": "system", "tool": "tool", "observation": "tool", "function_response": "tool", "function_call": "function_call"}
REASONING = ("reasoning_content", "thinking", "reasoning")
COUNTS = ("weight", "train", "training")  # of a message: whether its words count


class Conversation:
    """`counts`: of each message, whether its words do, were they the assistant's; `as_given`: the messages with the arguments of calls as texts, where they
    were such; `left`: what else the line has."""

    def __init__(self, messages, counts=None, as_given=None, tools=None, documents=None, variables=None, left=None):
        self.messages, self.counts = messages, counts or [True] * len(messages)
        self.as_given, self.tools, self.documents, self.variables, self.left = as_given, tools, documents, variables or {}, left or {}

    def counting(self):
        """Numbers of the messages that count."""
        return [k for k, message in enumerate(self.messages) if message["role"] == "assistant" and self.counts[k]]


def read_line(where, data):
    try:
        line = json.loads(data)
    except (RecursionError, ValueError) as error:  # what reads it first takes numbers of any length, and any depth
        raise Fault(f"{where}: it cannot be read: {error}. Remove the line.")
    if MARKS.search(data) and any(mark in json.dumps(line, ensure_ascii=False) for mark in (BEGIN, END)):
        raise Fault(f"{where}: a message holds U+FDD0 or U+FDD1, which are not characters. Remove them.")
    return line


def without_nulls(value):
    """A key whose value is null is absent, as transformers has it."""
    return {key: one for key, one in value.items() if one is not None}


def from_text(where, what, value, kind):
    """A value, which may stand as a text of JSON: columns of tables have no other way to say one."""
    given = value
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (RecursionError, ValueError):
            pass
    if not isinstance(value, kind):
        wanted = "a list" if kind is list else "an object"
        raise Fault(f"{where}: {what} is {shown(given)}, but must be {wanted}, or one as a text of JSON.")
    return value


def conversation_of(where, line, field):
    """`field` names the key of the messages; "": one of those that conversations are known by."""
    left = without_nulls(line)
    if field and field not in left:
        raise Fault(f"{where}: the object has no \"{field}\", which --field names.")
    key = field or next((key for key in LISTS if key in left), "")
    if key:
        turns = from_text(where, f'"{key}"', left.pop(key), list)
    else:
        turns = paired(where, left)
    chat = messages_of(where, turns)
    if "system" in left:
        set_system(where, chat, left.pop("system"))
    if "tools" in left:
        tools = from_text(where, '"tools"', left.pop("tools"), list)
        chat.tools = [from_text(where, f'tool {k + 1} of "tools"', tool, dict) for k, tool in enumerate(tools)]
    if "documents" in left:
        documents = from_text(where, '"documents"', left.pop("documents"), list)
        chat.documents = [from_text(where, f'document {k + 1} of "documents"', one, dict) for k, one in enumerate(documents)]
    if "chat_template_kwargs" in left:
        chat.variables = from_text(where, '"chat_template_kwargs"', left.pop("chat_template_kwargs"), dict)
    chat.left = {key: value for key, value in left.items() if value not in ("", [], {}) and not (field and key in known_forms())}
    return chat


def known_forms():
    return {*LISTS, "input", *(key for pair in PAIRS for key in pair)}


def set_system(where, chat, text):
    """A system's message that stands beside the others."""
    if not isinstance(text, str):
        raise Fault(f"{where}: \"system\" is {shown(text)}, but must be a text. {WANTED}")
    if not text:
        return
    if chat.messages[0]["role"] == "system":
        raise Fault(f"{where}: the object has a \"system\" and also a system message. Leave one of them out.")
    for messages in (chat.messages, chat.as_given or []):
        messages.insert(0, {"role": "system", "content": text})
    chat.counts.insert(0, True)


def paired(where, left):
    """The turns of an object that has what is asked and what is answered, each under a key."""
    for asked, answered in PAIRS:
        if asked not in left and answered not in left:
            continue
        for key in (asked, answered):
            if not isinstance(left.get(key), str):
                raise Fault(f"{where}: the object has no string \"{key}\" with its other one. {WANTED}")
        more = left.pop("input", "") if asked == "instruction" else ""
        if not isinstance(more, str):
            raise Fault(f"{where}: the \"input\" of the object is not a string. {WANTED}")
        turns = earlier_turns(where, left.pop("history", []))
        question = left.pop(asked) + (f"\n\n{more}" if more else "")
        return [*turns, {"role": "user", "content": question}, {"role": "assistant", "content": left.pop(answered)}]
    raise Fault(f"{where}: the object is not a conversation. {WANTED}")


def earlier_turns(where, history):
    """Pairs of what was asked and answered before."""
    turns = []
    for pair in from_text(where, '"history"', history, list):
        if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(text, str) for text in pair):
            raise Fault(f"{where}: \"history\" must be a list of pairs of texts: question and answer.")
        turns += [{"role": "user", "content": pair[0]}, {"role": "assistant", "content": pair[1]}]
    return turns


def messages_of(where, turns):
    """A list of messages as a conversation."""
    if not turns:
        raise Fault(f"{where}: its messages are an empty list. {WANTED}")
    messages, counts, as_given = [], [], []
    for k, turn in enumerate(turns):
        place = f"{where}: message {k + 1}"
        if not isinstance(turn, dict):
            raise Fault(f"{place} is not an object. {WANTED}")
        message = spoken(place, without_nulls(turn))
        counts.append(counts_of(place, message))
        given, made = with_calls(place, message)
        as_given.append(given)
        messages.append(made)
    return Conversation(messages, counts, as_given if as_given != messages else None)


def spoken(place, message):
    """With role and content, whichever names they have, and its reasoning under each name that templates know."""
    if "role" not in message and "from" in message:
        speaker = message.pop("from")
        if speaker not in SPEAKERS:
            raise Fault(f'{place}: "from" is {shown(speaker)}, but the speaker must be one of {", ".join(SPEAKERS)}.')
        message["role"] = SPEAKERS[speaker]
        if "content" not in message and "value" in message:
            message["content"] = message.pop("value")
        if message["role"] == "function_call":
            calls = from_text(place, "the call", message.pop("content", None), (dict, list))
            calls = calls if isinstance(calls, list) else [calls]
            message.update(role="assistant", content="", tool_calls=[{"type": "function", "function": call} for call in calls])
    if not isinstance(message.get("role"), str):
        raise Fault(f"{place} has no string \"role\". {WANTED}")
    reasoning = next((message[key] for key in REASONING if key in message), None)
    if reasoning is not None:
        others = {key for key in REASONING if message.get(key, reasoning) != reasoning}
        if others:
            raise Fault(f"{place} has several reasonings: {', '.join(key for key in REASONING if key in message)}. Leave one of them.")
        message = {"thinking": reasoning, **message, "reasoning_content": reasoning}
    content = message.get("content")
    if isinstance(content, list):
        raise Fault(f"{place}: its \"content\" is a list of parts. Join their texts into one.")
    if not isinstance(content, str) and not (content is None and (message.get("tool_calls") or reasoning or message.get("function_call"))):
        raise Fault(f"{place} has no string \"content\". {WANTED}")
    return message


def counts_of(place, message):
    """What a message says of itself: OpenAI's weight, and others' names for it."""
    said = {key: message.pop(key) for key in COUNTS if key in message}
    for key, value in said.items():
        if value not in (0, 1):  # True and 1.0 are 1
            raise Fault(f"{place}: \"{key}\" is {shown(value)}, but a message counts (1, true) or not (0, false).")
    if len({bool(value) for value in said.values()}) > 1:
        raise Fault(f"{place}: {' and '.join(said)} contradict each other.")
    counts = all(said.values())
    if said and counts and message["role"] != "assistant":
        raise Fault(f"{place}: \"{next(iter(said))}\" says that it counts, but its role is {shown(message['role'])}: only the assistant's "
                    f"turns can count.")
    return counts


def with_calls(place, message):
    """The message with its calls as a list of objects: with their arguments as they were given, and as objects, of which templates make JSON themselves."""
    if not message.get("tool_calls"):
        message.pop("tool_calls", None)
        return message, message
    given, made = [], []
    for call in from_text(place, '"tool_calls"', message["tool_calls"], list):
        call = from_text(place, "a call", call, dict)
        given.append(call)
        inner = call.get("function", call)
        if isinstance(inner, dict) and isinstance(inner.get("arguments"), str):
            inner = {**inner, "arguments": from_text(place, 'the "arguments" of a call', inner["arguments"].strip() or "{}", dict)}
            call = {**call, "function": inner} if "function" in call else inner
        made.append(call)
    return {**message, "tool_calls": given}, {**message, "tool_calls": made}
