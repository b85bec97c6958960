#!/usr/bin/env python3
"""What conversations hold (io/tokenizer/conversation.py, chat_template.py), in this process with jinja2: everything in a line is used, told of, or refused.

    check_conversations.py

Exit status: 0 all as they should be, 1 not, 77 without jinja2.
"""

import json
import os
import sys
import tempfile

try:
    import jinja2  # noqa: F401
except ImportError as error:
    print(f"skipped: {error}; run scripts/setup --tokenizers", file=sys.stderr)
    sys.exit(77)

SOURCES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "io", "tokenizer")
# A turn of each role that it knows; calls and reasoning of the assistant.
CHATML = """{%- if tools %}{{- '<s>system|' }}{%- for tool in tools %}{{- tool | tojson }}{%- endfor %}{{- '<e>' }}{%- endif %}
{%- for m in messages %}
{%- if m.role in ['system', 'user', 'tool'] %}{{- '<s>' + m.role + '|' + m.content + '<e>' }}
{%- elif m.role == 'assistant' %}{{- '<s>assistant|' }}{%- if m.reasoning_content %}{{- '(' + m.reasoning_content + ')' }}{%- endif %}{{- m.content or '' }}
{%- for call in m.tool_calls %}{{- '[' + call.function.name + call.function.arguments | tojson + ']' }}{%- endfor %}{{- '<e>' }}{%- endif %}
{%- endfor %}{%- if add_generation_prompt %}{{- '<s>assistant|' }}{%- endif %}"""
MARKED = "{% for m in messages %}{{ m.role }}:{% if m.role == 'assistant' %}{% generation %}{{ m.content }};{% endgeneration %}{% else %}{{ m.content }};{% endif %}{% endfor %}"
TEXT_CALLS = "{% for m in messages %}<{{ m.role + m.content }}{% for c in m.tool_calls %}{{ '[' + c.function.arguments + ']' }}{% endfor %}>{% endfor %}"
ASK, SAY = {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}
CALL = {"type": "function", "function": {"name": "f", "arguments": {"x": 1}}}
TOOL = {"type": "function", "function": {"name": "f"}}


def call(arguments):
    return {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": arguments}}]}


def messages(*turns, **more):
    return {"messages": list(turns), **more}


PLAIN = "<s>user|q<e><s>assistant|a<e>"
CALLED = '<s>user|q<e><s>assistant|[f{"x": 1}]<e>'
# Template, line, the text, what of it counts; and which keys are told of.
GOOD = [
    (CHATML, messages(ASK, SAY), PLAIN, ["a<e>"], ""),
    (CHATML, messages(ASK, {**SAY, "weight": 1}), PLAIN, ["a<e>"], ""),
    *((CHATML, messages(ASK, {**SAY, key: no}, ASK, {"role": "assistant", "content": "b", key: yes}), PLAIN + "<s>user|q<e><s>assistant|b<e>", ["b<e>"], "")
      for key, no, yes in (("weight", 0, 1), ("weight", 0.0, None), ("train", False, True), ("training", False, None))),
    (CHATML, messages({**ASK, "weight": 0}, SAY), PLAIN, ["a<e>"], ""),
    (MARKED, messages(ASK, {**SAY, "train": False}, ASK, {"role": "assistant", "content": "b"}), "user:q;assistant:a;user:q;assistant:b;", ["b;"], ""),
    (MARKED, messages(ASK, SAY, {**SAY, "weight": 0}), "user:q;assistant:a;assistant:a;", ["a;"], ""),
    (CHATML, messages(ASK, SAY, system="be"), "<s>system|be<e>" + PLAIN, ["a<e>"], ""),
    (CHATML, messages(ASK, SAY, system=""), PLAIN, ["a<e>"], ""),
    (CHATML, messages(ASK, SAY, system=None, tools=None, anything=None), PLAIN, ["a<e>"], ""),
    (CHATML, {"instruction": "q", "output": "a", "system": "be", "history": [["o", "p"]]}, "<s>system|be<e><s>user|o<e><s>assistant|p<e>" + PLAIN, ["p<e>", "a<e>"], ""),
    (CHATML, {"instruction": "q", "input": None, "output": "a", "history": []}, PLAIN, ["a<e>"], ""),
    (CHATML, {"prompt": "q", "completion": "a", "id": 7}, PLAIN, ["a<e>"], "id"),
    (CHATML, {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]}, PLAIN, ["a<e>"], ""),
    (CHATML, {"conversations": [ASK, SAY]}, PLAIN, ["a<e>"], ""),
    (CHATML, {"messages": [{"from": "human", "value": "q"}, {"from": "function_call", "value": '{"name": "f", "arguments": {"x": 1}}'}, {"from": "observation", "value": "9"}]},
     CALLED + "<s>tool|9<e>", ['[f{"x": 1}]<e>'], ""),
    (CHATML, {"messages": json.dumps([ASK, SAY])}, PLAIN, ["a<e>"], ""),
    *((CHATML, messages(ASK, SAY, tools=tools), "<s>system|" + json.dumps(TOOL) + "<e>" + PLAIN, ["a<e>"], "")
      for tools in ([TOOL], json.dumps([TOOL]), [json.dumps(TOOL)])),
    (CHATML, messages(ASK, SAY, tools=[]), PLAIN, ["a<e>"], ""),
    *((CHATML, messages(ASK, turn), CALLED, ['[f{"x": 1}]<e>'], "")
      for turn in (call({"x": 1}), call('{"x":1}'), {"role": "assistant", "content": None, "tool_calls": [CALL]}, {"role": "assistant", "tool_calls": json.dumps([CALL])})),
    (CHATML, messages(ASK, call("")), "<s>user|q<e><s>assistant|[f{}]<e>", ["[f{}]<e>"], ""),
    (TEXT_CALLS, messages(ASK, call('{"x":1}'), {"role": "user", "content": "r"}), '<userq><assistant[{"x":1}]><userr>', None, ""),
    *((CHATML, messages(ASK, {**SAY, key: "r"}), "<s>user|q<e><s>assistant|(r)a<e>", ["(r)a<e>"], "") for key in ("reasoning_content", "thinking", "reasoning")),
    (CHATML, messages(ASK, {**SAY, "reasoning_content": "", "thinking": None}), PLAIN, ["a<e>"], ""),
    (CHATML, messages({**ASK, "name": "n", "tool_calls": None}, {**SAY, "id": 3}), PLAIN, ["a<e>"], "id name"),
    ("{% for m in messages %}<{{ m | tojson }}>{% endfor %}", messages({**ASK, "odd": 1}), None, None, "refused: no message of the"),
    ("{{ day }}" + CHATML, messages(ASK, SAY, chat_template_kwargs={"day": "D"}), "D" + PLAIN, ["a<e>"], ""),
    ("{{ day }}" + CHATML, messages(ASK, SAY, chat_template_kwargs='{"day": "D"}'), "D" + PLAIN, ["a<e>"], ""),
    ("{{ documents[0].text }}" + CHATML, messages(ASK, SAY, documents=[{"text": "D"}]), "D" + PLAIN, ["a<e>"], ""),
    ("{{ {'b': [1, 'é'], 'a': 2} | tojson(ensure_ascii=True, separators=(',', ':'), sort_keys=True) }}" + CHATML, messages(ASK, SAY),
     '{"a":2,"b":[1,"\\u00e9"]}' + PLAIN, ["a<e>"], ""),
    ("{{ strftime_now('%d') if strftime_now is defined else 'then' }}" + CHATML, messages(ASK, SAY), "then" + PLAIN, ["a<e>"], ""),
]
# Template, line, and words of the refusal.
BAD = [
    *((CHATML, messages(ASK, SAY, **{key: value}), f'this program does not know "{key}" beside the messages')
      for key, value in (("functions", [TOOL]), ("thinking", "r"), ("context", "c"), ("prompt", "q"), ("odd", 5), ("history", [["a", "b"]]))),
    (CHATML, {"prompt": "q", "completion": "a", "instruction": ""}, "the object has no string"),
    (CHATML, messages(ASK, SAY, odd=1, other=[2]), "--ignore odd,other"),
    ("{{ day }}" + CHATML, messages(ASK, SAY, day="D"), 'put day in "chat_template_kwargs"'),
    (CHATML, messages(ASK, SAY, chat_template_kwargs={"enable_thinking": False}), 'does not read enable_thinking, which "chat_template_kwargs" gives'),
    (CHATML, messages(ASK, SAY, chat_template_kwargs=[1]), '"chat_template_kwargs" is a list, but must be an object'),
    (MARKED, messages(ASK, SAY, tools=[TOOL]), "does not read tools"),
    (CHATML, messages(ASK, SAY, documents=[{"text": "D"}]), "does not read documents"),
    *((CHATML, messages(ASK, SAY, tools=tools), words)
      for tools, words in (("f", '"tools" is "f", but must be a list'), ([1], 'tool 1 of "tools" is 1'), (["f"], 'tool 1 of "tools" is "f"'), ({}, '"tools" is an object'))),
    (CHATML, messages(ASK, call("x=1")), 'the "arguments" of a call is "x=1", but must be an object'),
    (CHATML, messages(ASK, call("[1]")), 'the "arguments" of a call'),
    (CHATML, messages(ASK, {**SAY, "tool_calls": "f"}), '"tool_calls" is "f"'),
    (CHATML, messages(ASK, {**SAY, "weight": 0.5}), '"weight" is 0.5, but a message counts'),
    (CHATML, messages(ASK, {**SAY, "train": "no"}), '"train" is "no"'),
    (CHATML, messages(ASK, {**SAY, "weight": 0, "train": True}), "contradict each other"),
    (CHATML, messages({**ASK, "train": True}, SAY), "the assistant's turns can count"),
    (CHATML, messages(ASK, {**SAY, "weight": 0}), ", but all of the assistant's messages are set not to count"),
    (CHATML, messages(ASK, {**SAY, "odd": "x"}), 'message 2: the chat template of'),
    (CHATML, messages(ASK, {**SAY, "function_call": {"name": "f"}}), 'does not read "function_call"'),
    (CHATML, messages(ASK, {**SAY, "thinking": "a", "reasoning": "b"}), "several reasonings: thinking, reasoning"),
    (MARKED, messages(ASK, {**SAY, "thinking": "a"}), 'does not read "thinking", "reasoning_content"'),
    (MARKED, messages(ASK, {**SAY, "tool_calls": [CALL]}), 'does not read "tool_calls"'),
    *((CHATML, messages(ASK, {"role": role, "content": "9"}, SAY), f'message 2, of the role "{role}", does not occur') for role in ("function_call", "observation", "Assistant")),
    (CHATML, messages(ASK, {"role": "developer", "content": "q"}, SAY), 'of the role "developer", does not occur'),
    *((CHATML.replace("'system', ", f"'system', '{role}', "), messages(ASK, {"role": role, "content": "a"}), f"the roles are user, {role}") for role in ("Assistant", "model")),
    (CHATML, {"conversations": [{"from": "human", "value": "q"}, {"from": "robot", "value": "a"}]}, '"from" is "robot", but the speaker must be one of human, user, gpt'),
    (CHATML, {"conversations": [{"from": "gpt"}]}, 'has no string "content"'),
    (CHATML, messages(ASK, {"role": "assistant"}), 'message 2 has no string "content"'),
    (CHATML, messages(ASK, {"role": "assistant", "content": None}), 'message 2 has no string "content"'),
    (CHATML, messages({"role": "user", "content": None, "tool_calls": []}, SAY), 'message 1 has no string "content"'),
    (CHATML, messages(ASK, {"role": "assistant", "content": [{"type": "text", "text": "a"}]}), '"content" is a list of parts'),
    (CHATML, messages(ASK, 5), "message 2 is not an object"),
    (CHATML, messages(), 'its messages are an empty list'),
    (CHATML, {"messages": None}, "the object is not a conversation"),
    (CHATML, messages({"role": "system", "content": "x"}, ASK, SAY, system="be"), 'a "system" and also a system message'),
    (CHATML, messages(ASK, SAY, system=5), '"system" is 5, but must be a text'),
    (CHATML, {"instruction": "q", "output": "a", "history": [["x"]]}, '"history" must be a list of pairs'),
    ("{{ strftime_now('%d') }}" + CHATML, messages(ASK, SAY), "replace strftime_now(...) by a date, and name that file: --chat-template FILE"),
    ("{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}", messages(ASK, SAY, {**SAY, "weight": 0}), "marks 3 pieces of a text for 2 of them"),
]


def fail(what):
    print(f"FAIL {what}", file=sys.stderr)
    sys.exit(1)


def program():
    sys.argv = ["worker", "0"]
    source = ""
    for name in ("channel", "model_files", "conversation", "chat_template"):
        with open(os.path.join(SOURCES, name + ".py"), encoding="utf-8") as file:
            source += file.read() + "\n"
    names = {"__name__": "worker"}
    exec(compile(source, "worker.py", "exec"), names)
    return names


def write(folder, **files):
    os.makedirs(folder, exist_ok=True)
    for name, text in files.items():
        name = name.replace("_jinja", ".jinja").replace("_json", ".json")
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            file.write(text if isinstance(text, str) else json.dumps(text))


def rendered(names, templates, line, field="", ignored=()):
    """Text, what counts, what was told of; or the refusal."""
    data = json.dumps(line)
    try:
        chat = names["conversation_of"]("c.jsonl:1", names["read_line"]("c.jsonl:1", data), field)
        text, spans, unused = templates.of(chat.tools).conversation("c.jsonl:1", chat, len(data), frozenset(ignored))
        return text, [text[a:b] for a, b in spans], " ".join(sorted(unused))
    except names["Fault"] as fault:
        return "", [], "refused: " + str(fault)


def check_lines(names, folder):
    for source, line, text, counts, told in GOOD:
        got = rendered(names, names["Templates"](folder, {}, "x", source, ["ours"]), line)
        if told.startswith("refused") and told[9:] in got[2]:
            continue
        if got[0] != text or (counts is not None and got[1] != counts) or got[2] != told:
            fail(f"{line} became {got}, and should be {(text, counts, told)}")
    for source, line, words in BAD:
        got = rendered(names, names["Templates"](folder, {"chat_template": source}, "", "", ["ours"]), line)[2]
        if not got.startswith("refused: c.jsonl:1: ") or words not in got:
            fail(f"{line}: {got}\nshould be refused with: {words}")
    one = names["Templates"](folder, {}, "x", CHATML, ["ours"])
    for line, ignored, field, told in ((messages(ASK, {**SAY, "odd": 1}, other=2), ["odd", "other"], "", "odd other"),
                                       (messages(ASK, SAY, tools=[TOOL]), ["tools"], "", ""), ({"turns": [ASK, SAY], "messages": 5, "prompt": "x"}, [], "turns", "")):
        got = rendered(names, one, line, field, ignored)
        if not got[0].endswith(PLAIN) or got[2] != told:
            fail(f"{line} without {ignored}: {got}")
    return len(GOOD) + len(BAD)


def check_templates(names, folder):
    """Which template of a model is taken, as transformers does; and which texts of special tokens it is given."""
    two = [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}]
    cases = [({"chat_template": "C"}, {}, "", "C", "C"), ({"chat_template": two}, {}, "", "D", "T"), ({"chat_template": two}, {"chat_template_jinja": "J"}, "", "J", "J"),
             ({"chat_template": two}, {}, "tool_use", "T", "T"), ({}, {"chat_template_json": {"chat_template": "P"}}, "", "P", "P"),
             ({"chat_template": "C"}, {"chat_template_json": {"chat_template": "P"}}, "", "C", "C"), ({"chat_template": {"default": "D", "tool_use": "T"}}, {}, "", "D", "T")]
    for k, (config, files, chosen, plain, tooled) in enumerate(cases):
        model = os.path.join(folder, f"m{k}")
        write(model, **files)
        templates = names["Templates"](model, config, chosen, "", ["ours"])
        got = [templates.of(tools).compiled.render() for tools in (None, [])]
        if got != [plain, tooled]:
            fail(f"{config}, {files}: the templates are {got}, and should be {plain}, {tooled}")
    more = os.path.join(folder, "more")
    write(more, chat_template_jinja="J")
    write(os.path.join(more, "additional_chat_templates"), tool_use_jinja="A", rag_jinja="R")
    for chosen, tools, text in (("", None, "J"), ("", [TOOL], "A"), ("rag", None, "R")):
        if names["Templates"](more, {"chat_template": "C"}, chosen, "", ["ours"]).of(tools).compiled.render() != text:
            fail(f"{chosen or 'default'} of additional_chat_templates is not {text}")
    for config, chosen, words in (({"chat_template": [two[1]]}, "", "none is called default: tool_use"), ({}, "", "the model has no chat template"),
                                  ({"chat_template": two}, "none", "has no chat template of this name (default, tool_use), the program has ours")):
        try:
            names["Templates"](folder, config, chosen, "", ["ours"]).of(None)
            fail(f"{config} is not refused")
        except names["Fault"] as fault:
            if words not in str(fault) or fault.kind != "usage":
                fail(f"{config}: {fault}")
    for name, make in (("chat_template.jinja", lambda path: os.symlink("nowhere", path)), ("additional_chat_templates", lambda path: open(path, "w").close())):
        odd = os.path.join(folder, "odd-" + name)
        os.mkdir(odd)
        make(os.path.join(odd, name))
        try:
            names["Templates"](odd, {"chat_template": "C"}, "", "", ["ours"])
            fail(f"{name} that cannot be read is passed over")
        except names["Fault"] as fault:
            if f"{name}: it cannot be read" not in str(fault):
                fail(f"{name}: {fault}")
    tokens = os.path.join(folder, "tokens")
    write(tokens, tokenizer_config_json={"eos_token": None, "image_token": "<i>", "add_bos_token": True, "extra_special_tokens": {"think": "<t>"}},
          special_tokens_map_json={"bos_token": {"content": "<b>"}, "eos_token": "<e>", "pad_token": None})
    config = names["tokenizer_config"](tokens)
    got = names["template_tokens"](config, "x")
    if got != {"bos_token": "<b>", "eos_token": "<e>", "image_token": "<i>", "think": "<t>"}:
        fail(f"special tokens are {got}")
    write(tokens, tokenizer_config_json={"eos_token": "<x>", "added_tokens_decoder": {}})
    if names["tokenizer_config"](tokens)["eos_token"] != "<x>":
        fail("special_tokens_map.json comes before a tokenizer_config.json that has its own added tokens")
    return len(cases)


def check_ours(names, folder):
    """The templates that come with the program: each turn counts with what ends it, and a prompt is the text up to a turn."""
    found = sorted(os.listdir(os.path.join(SOURCES, "templates")))
    for name in found:
        with open(os.path.join(SOURCES, "templates", name), encoding="utf-8") as file:
            templates = names["Templates"](folder, {"eos_token": "<e>", "bos_token": "<b>"}, name, file.read(), ["ours"])
        text, counts, told = rendered(names, templates, messages({"role": "system", "content": "be"}, ASK, SAY, {**ASK, "content": "r"}, {**SAY, "content": "b"}))
        chat = names["messages_of"]("here", [{"role": "system", "content": "be"}, ASK, SAY, {**ASK, "content": "r"}])
        prompt = templates.of(None).prompt("here", chat, 10)
        if len(counts) != 2 or not counts[0].startswith("a") or not counts[1].startswith("b") or told or not text.startswith(prompt + counts[1]):
            fail(f"{name}: {text!r}, {counts}, {told}; {prompt!r}")
    return len(found)


names = program()
with tempfile.TemporaryDirectory() as scratch:
    print(f"{check_lines(names, scratch)} lines, {check_templates(names, scratch)} sets of templates, {check_ours(names, scratch)} of ours")
