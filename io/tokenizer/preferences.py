# Preference data for worker.py, after conversation.py and chat_template.py: a prompt with a chosen and a rejected completion, or with one
# completion that has a label.
import math
import re

TAGS = ("label", "kto_tag")
SCORES = ("score_chosen", "score_rejected")
BOTH = ("chosen", "rejected")
FIGURES = "score|rating|avg_rating|model|policy|source|id"
ABOUT_A_COMPLETION = re.compile(f"(chosen|rejected)[-_]({FIGURES})|({FIGURES})[-_](chosen|rejected)")
ABOUT_A_PAIR = frozenset("prompt_id question_id conversation_id".split())
MOST_MARGIN = 3.4028234663852886e38  # of float32


class Preference:
    """A line. `prompt` and each of `completions` (the chosen and the rejected one, or the one that has a `label`) are texts; or
    `completions` are Conversations, and `prompt` says how many messages of them are given. `left`: keys of the line that are not used yet;
    `unused`: those of no use."""

    def __init__(self, where, line, ignored):
        self.where, self.left = where, without_nulls(line)
        self.prompt, self.completions, self.label = "", [], None
        self.margin = margin_of(where, self.left, ignored)
        self.unused = {key for key in self.left if key in ABOUT_A_PAIR or ABOUT_A_COMPLETION.fullmatch(key)}
        self.left = {key: value for key, value in self.left.items() if key not in self.unused and key != "margin"}

    def fault(self, message):
        return Fault(f"{self.where}: {message}")

    def chats(self):
        return not isinstance(self.prompt, str)

    def take(self, key, otherwise=None):
        return self.left.pop(key, otherwise)

    def texts(self, prompt, completions):
        self.prompt, self.completions = prompt, completions
        self.unused |= set(self.left)
        return self

    def chat(self, asked, completions):
        """`asked`: messages that each of the completions, lists of messages, follows."""
        names = BOTH if len(completions) == 2 else ("completion",)
        for name, turns in zip(names, completions):
            chat = conversation_of(f'{self.where}: "{name}"', {**self.left, "messages": [*asked, *turns]}, "")
            self.prompt = len(chat.messages) - len(turns)
            if not asked:
                raise self.fault("the prompt has no message. Put what the assistant answers into it.")
            if chat.messages[self.prompt - 1]["role"] == "assistant":
                raise self.fault("the prompt ends with a turn of the assistant, but must end with what it answers.")
            role = chat.messages[self.prompt]["role"]
            if role != "assistant":
                raise self.fault(f'"{name}" begins with the role {shown(role)}, but must begin with the assistant\'s answer.')
            if not all(chat.counts):
                raise self.fault(f'"{name}": a message says that it does not count, but all of a completion counts. Leave that key out.')
            self.completions.append(chat)
        return self


def preference_of(where, line, as_chat, ignored):
    """What a line says, in each form that such data have; None where both completions are the same text and nothing says where the prompt
    ends. `as_chat`: texts are turns of a user and of the assistant."""
    one = Preference(where, line, ignored)
    if "chosen" not in one.left:
        return labelled(one, as_chat)
    both = [one.take(key) for key in BOTH]
    if isinstance(both[0], list) and one.left.get("messages") in both:
        one.take("messages")  # UltraFeedback has the chosen conversation a second time
        one.unused.add("messages")
    asked = question_of(one)
    prompt = one.take("prompt")
    if not isinstance(prompt, (str, list, type(None))):
        raise one.fault(f'"prompt" is {shown(prompt)}, but must be a text, or a list of messages.')
    texts = [isinstance(completion, str) for completion in both]
    if texts[0] != texts[1]:
        raise one.fault(f'"chosen" is {shown(both[0])} and "rejected" is {shown(both[1])}, but both must be texts, or both messages.')
    if asked is None and isinstance(prompt, list):
        asked = prompt
    if asked is None and all(texts):
        return of_texts(one, prompt, both, as_chat)
    both = [turns_of(one, key, completion) for key, completion in zip(BOTH, both)]
    return one.chat(asked, both) if asked is not None else of_conversations(one, prompt, both)


def margin_of(where, line, ignored):
    """By how much the chosen completion is better: what is said, or the difference of both scores."""
    if "margin" in line and "margin" not in ignored:
        margin = line["margin"]
    elif "chosen" in line and all(key in line and key not in ignored for key in SCORES):
        margin = line[SCORES[0]] - line[SCORES[1]]
    else:
        return None
    if abs(margin) > MOST_MARGIN or not math.isfinite(margin):
        raise Fault(f"{where}: its margin is not a finite number of 32 bits. Correct it, or leave margins out: --ignore "
                    f"margin,{','.join(SCORES)}.")
    return float(margin)


def labelled(one, as_chat):
    """KTO's form: a completion, and whether it is desirable."""
    one.label = next(one.take(key) for key in TAGS if key in one.left)
    if "completion" in one.left:
        prompt, completion = one.take("prompt"), one.take("completion")
        if not isinstance(prompt, (str, list)):
            raise one.fault(f'"prompt" is {"missing" if prompt is None else shown(prompt)}, but must be a text, or a list of messages.')
        if isinstance(prompt, str) and isinstance(completion, str):
            return of_texts(one, prompt, [completion], as_chat)
        asked = prompt if isinstance(prompt, list) else [{"role": "user", "content": prompt}]
        return one.chat(asked, [turns_of(one, "completion", completion)])
    if "instruction" in one.left and "output" in one.left:
        answer = one.take("output")
        return one.chat(question_of(one), [turns_of(one, "output", answer)])
    key = next((key for key in LISTS if key in one.left), None)
    if key is None:
        raise one.fault('it has a label, but no completion. Give "prompt" and "completion", "messages" or "conversations", or '
                        '"instruction" and "output".')
    turns = from_text(one.where, f'"{key}"', one.take(key), list)
    if not turns:
        raise one.fault(f'"{key}" is empty, but must hold a prompt and the answer that has the label.')
    return one.chat(turns[:-1], [turns[-1:]])


def question_of(one):
    """The prompt of LLaMA-Factory's form, or of Alpaca's; None where the line has neither."""
    if "instruction" in one.left:
        question, more = one.take("instruction"), one.take("input", "")
        for key, text in (("instruction", question), ("input", more)):
            if not isinstance(text, str):
                raise one.fault(f'"{key}" is {shown(text)}, but must be a text.')
        earlier = earlier_turns(one.where, one.take("history", []))
        return [*earlier, {"role": "user", "content": question + (f"\n\n{more}" if more else "")}]
    key = next((key for key in LISTS if key in one.left), None)
    return None if key is None else from_text(one.where, f'"{key}"', one.take(key), list)


def turns_of(one, key, completion):
    """A completion as messages: a text is the assistant's."""
    if isinstance(completion, str):
        return [{"role": "assistant", "content": completion}]
    if isinstance(completion, dict):
        return [completion]
    if not isinstance(completion, list) or not completion:
        given = "an empty list" if completion == [] else shown(completion)
        raise one.fault(f'"{key}" is {given}, but must be a text, a message, or a list of messages.')
    return completion


def of_texts(one, prompt, completions, as_chat):
    """After a prompt that is a text or none."""
    if as_chat and prompt is None:
        raise one.fault('--chat makes turns of texts, but there is no "prompt", which is the user\'s. Add it.')
    if as_chat:
        return one.chat([{"role": "user", "content": prompt}], [turns_of(one, "completion", text) for text in completions])
    if prompt is not None:
        return one.texts(prompt, completions)
    if completions[0] == completions[1]:
        return None
    prompt = common_text(*completions)
    return one.texts(prompt, [text[len(prompt) :] for text in completions])


def common_text(one, other):
    """The longest text that both begin with, without a blank at its end: a word's tokens begin with the blank before it."""
    end = first_difference(one, other)
    return one[: end - 1] if end > 0 and one[end - 1] == " " else one[:end]


def of_conversations(one, prompt, both):
    """Lists of messages that follow a text, or hold the prompt themselves."""
    if prompt is not None and all(speaker(turns[0]) == "assistant" for turns in both):
        return one.chat([{"role": "user", "content": prompt}], both)
    shared = min(first_difference(*both), *(len(turns) - 1 for turns in both))
    while shared and speaker(both[0][shared - 1]) == "assistant":
        shared -= 1
    if not shared:
        raise one.fault('"chosen" and "rejected" begin with no turn in common that the assistant answers. Put the prompt into "prompt".')
    if prompt is not None and not any(said(turn).strip() == prompt.strip() for turn in both[0][:shared]):
        raise one.fault('"prompt" is none of the turns that "chosen" and "rejected" begin with. Correct it, or leave it out: then these '
                        'turns are the prompt.')
    return one.chat(both[0][:shared], [turns[shared:] for turns in both])


def speaker(turn):
    """The role of a message; "" where it has none, which messages_of refuses."""
    role = turn.get("role", turn.get("from")) if isinstance(turn, dict) else None
    return SPEAKERS.get(role, role) if isinstance(role, str) else ""


def said(turn):
    text = turn.get("content", turn.get("value"))
    return text if isinstance(text, str) else ""


def first_difference(one, other):
    """How many elements both begin with."""
    shorter = min(len(one), len(other))
    return next((k for k in range(shorter) if one[k] != other[k]), shorter)
