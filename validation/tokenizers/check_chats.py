#!/usr/bin/env python3
"""Conversations of `tessera tokenize --chat` beside transformers' apply_chat_template: the same ids, and a loss mask of the assistant's words alone.

    TESSERA=build/host/tessera check_chats.py

Exit status: 0 all agree, 1 not, 77 when transformers is not installed.
"""

import json
import os
import random
import sys
import tempfile

try:
    from transformers import PreTrainedTokenizerFast
except ImportError as error:
    print(f"skipped: {error}; run scripts/setup --peer", file=sys.stderr)
    sys.exit(77)

from make_tokenizers import KINDS, UNMARKED, WORDS, make
from program import fail, run, tessera, write_lines
from token_files import read

# What follows an assistant's words in its turn, by kind.
CLOSES = {"smollm": "<|im_end|>\n", "llama3": "<|eot_id|>", "llama2": " </s>", "mistral": " </s>", "qwen": "<|im_end|>"}


def conversations(seed):
    draw = random.Random(seed)
    say = lambda: " ".join(draw.choice(WORDS) for _ in range(draw.randint(1, 12)))
    for k in range(60):
        turns = [{"role": "system", "content": say()}] if k % 3 == 0 else []
        for _ in range(draw.randint(1, 3)):
            turns += [{"role": "user", "content": say()}, {"role": "assistant", "content": say()}]
        yield turns


def lines(seed):
    """Lines as files have them, each with the conversation that it is."""
    for k, turns in enumerate(conversations(seed)):
        two = [turn["content"] for turn in turns if turn["role"] != "system"][:2]
        pair = [{"role": "user", "content": two[0]}, {"role": "assistant", "content": two[1]}]
        if k % 5 == 1:
            yield {"instruction": two[0], "output": two[1]}, pair
        elif k % 5 == 2:
            yield {"instruction": two[0], "input": "more", "output": two[1]}, [{"role": "user", "content": two[0] + "\n\nmore"}, pair[1]]
        elif k % 5 == 3:
            yield {"prompt": two[0], "completion": two[1]}, pair
        else:
            yield {"messages": turns}, turns


def check(folder, name):
    make(name, os.path.join(folder, name))
    theirs = PreTrainedTokenizerFast.from_pretrained(os.path.join(folder, name))
    source, rows = os.path.join(folder, name + ".jsonl"), list(lines(5))
    write_lines(source, (line for line, _ in rows))
    out = os.path.join(folder, "out")
    tessera("tokenize", "--tokenizer", os.path.join(folder, name), source, out, "--chat", "--workers", "2")
    documents, _ = read(out + "/train.h5")
    if len(documents) != len(rows):
        fail(f"{name}: {len(documents)} documents of {len(rows)} lines")
    for (_, turns), (ids, counts) in zip(rows, documents):
        want = theirs.apply_chat_template(turns, tokenize=True, return_dict=True, return_assistant_tokens_mask=name == "qwen")
        if ids != list(want["input_ids"]):
            fail(f"{name}: {turns} became {ids} and is {want['input_ids']}")
        if name == "qwen" and counts != list(want["assistant_masks"]):
            fail(f"{name}: {turns}: the mask is {counts}, and transformers' {want['assistant_masks']}")
        said = theirs.decode([i for i, c in zip(ids, counts) if c]).replace(" ", "")
        words = "".join(turn["content"] + CLOSES[name] for turn in turns if turn["role"] == "assistant").replace(" ", "")
        if said != words:
            fail(f"{name}: {turns}: what counts is {said!r} and should be {words!r}")
    print(f"{name}: ids and masks of {len(rows)} conversations")


# Reads what a plain template does not: tools, calls, reasoning and a day.
TOOLED = """{{ bos_token }}{% if tools %}{{ tools | tojson(indent=1) }}{% endif %}{{ day }}{% for m in messages %}{{ m.role + ':' }}{% if m.reasoning_content %}
({{ m.reasoning_content }}){% endif %}{{ m.content }}{% for call in m.tool_calls %}{{ call | tojson(sort_keys=true) }}{% endfor %}{{ eos_token }}{% endfor %}
{% if add_generation_prompt %}assistant:{% endif %}"""
CALL = {"function": {"name": "f", "arguments": {"x": [1, None]}}}
TOOLED_LINES = [{"messages": [{"role": "user", "content": "a", **more}, {"role": "assistant", **said}], **beside}
                for more in ({}, {"tool_calls": None}) for said in ({"content": "b"}, {"content": None, "tool_calls": [CALL]}, {"content": "b", "thinking": "c"},
                                                                    {"content": "b", "reasoning": "c", "reasoning_content": None})
                for beside in ({}, {"tools": None}, {"tools": []}, {"tools": [CALL]}, {"chat_template_kwargs": {"day": "5"}})]


def check_tools(folder):
    """Which of several templates is taken, what it is given, and where special tokens stand alone in special_tokens_map.json."""
    for k, form in enumerate(("list", "files", "one")):
        model = os.path.join(folder, "tools" + form)
        make("llama3", model)
        config = {"tokenizer_class": "PreTrainedTokenizerFast"}
        if form == "list":
            config["chat_template"] = [{"name": "default", "template": TOOLED}, {"name": "tool_use", "template": "T" + TOOLED}]
        files = {"files": {"chat_template.jinja": TOOLED, "additional_chat_templates/tool_use.jinja": "U" + TOOLED}, "one": {"chat_template.jinja": TOOLED}}.get(form, {})
        files |= {"tokenizer_config.json": json.dumps(config), "special_tokens_map.json": json.dumps({"bos_token": "<|begin_of_text|>", "eos_token": {"content": "<|eot_id|>"}})}
        for name, text in files.items():
            os.makedirs(os.path.dirname(os.path.join(model, name)), exist_ok=True)
            with open(os.path.join(model, name), "w", encoding="utf-8") as file:
                file.write(text)
        theirs, source, out = PreTrainedTokenizerFast.from_pretrained(model), os.path.join(folder, f"tools{k}.jsonl"), os.path.join(folder, "out")
        write_lines(source, TOOLED_LINES)
        tessera("tokenize", "--tokenizer", model, source, out, "--chat", "--workers", "1")
        documents, _ = read(out + "/train.h5")
        for line, (ids, _) in zip(TOOLED_LINES, documents, strict=True):
            want = theirs.apply_chat_template(line["messages"], tools=line.get("tools"), tokenize=True, return_dict=True, **line.get("chat_template_kwargs", {}))
            if ids != list(want["input_ids"]):
                fail(f"{form}: {line} became {theirs.decode(ids)!r} and is {theirs.decode(want['input_ids'])!r}")
    print(f"{len(TOOLED_LINES)} conversations with tools by three forms of templates")


# What tokenizer_config.json may say of tokens beside tokenizer.json; each with words of a note, where one is due.
ADDED = [({"pad_token": "<pad>"}, "<pad>"), ({"extra_special_tokens": ["<a>", "<b>"]}, "<a>, <b>"), ({"extra_special_tokens": {"image_token": "<img>"}}, "<img>"),
         ({"additional_special_tokens": [{"content": "<c>", "lstrip": True, "__type": "AddedToken"}]}, "<c>"), ({"image_token": "is"}, ""),
         ({"added_tokens_decoder": {"900": {"content": "<d>", "rstrip": True, "special": True}, "80": {"content": "the", "special": False}}}, "<d>"),
         ({"split_special_tokens": True}, ""), ({"pad_token": None, "odd": None, "extra_special_tokens": []}, ""), ({"odd": 5}, "not used: odd")]


def check_added(folder):
    text = "the <pad> is <a><b>  <img> in <c>  so <d>  the end <|eot_id|> is"
    for k, (more, note) in enumerate(ADDED):
        model, source, out = (os.path.join(folder, f"added{k}{end}") for end in ("", ".jsonl", "out"))
        make("llama3", model)
        path = os.path.join(model, "tokenizer_config.json")
        with open(path, encoding="utf-8") as file:
            config = json.load(file)
        with open(path, "w", encoding="utf-8") as file:
            json.dump(config | more, file)
        write_lines(source, [{"text": text}])
        status, _, said = run("tokenize", "--tokenizer", model, source, out)
        want = PreTrainedTokenizerFast.from_pretrained(model)
        ids = read(out + "/train.h5")[0][0][0] if status == 0 else said
        if ids != [*want(text)["input_ids"], want.convert_tokens_to_ids("<|eot_id|>")] or note not in said or ("tokenizer_config.json: " in said) != bool(note):
            fail(f"{more}: {ids} is {want(text)['input_ids']}\n{said}")
    print(f"tokens of {len(ADDED)} tokenizer_config.json beside a tokenizer.json")


def check_refusals(folder):
    """A template that complains, one that has no marks and renders earlier turns otherwise, and a model without one."""
    def refuse(model, messages, status, words):
        source = os.path.join(folder, "refused.jsonl")
        write_lines(source, [{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}, {"messages": messages}])
        got, _, errors = run("tokenize", "--tokenizer", os.path.join(folder, model), source, os.path.join(folder, "refused"), "--chat")
        if got != status or words not in errors:
            fail(f"{model}: status {got}, expected {status} and {words!r}:\n{errors}")

    refuse("llama2", [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}], 3, "refused.jsonl:2: the chat template of")
    refuse("llama2", [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}], 3, "Conversation roles must alternate")
    with open(os.path.join(folder, "qwen", "chat_template.jinja"), "w", encoding="utf-8") as file:
        file.write(UNMARKED)
    thinking = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "<think>x</think>b"}] * 2
    refuse("qwen", thinking, 3, "refused.jsonl:2: the chat template of")
    refuse("qwen", thinking, 3, "renders message 2 differently in the whole conversation and at its end")
    with open(os.path.join(folder, "qwen", "chat_template.jinja"), "w", encoding="utf-8") as file:
        file.write("{% for message in messages %}")
    refuse("qwen", thinking, 3, "cannot be read")
    make("gpt2", os.path.join(folder, "gpt2"))
    refuse("gpt2", thinking, 2, "the model has no chat template")


with tempfile.TemporaryDirectory() as scratch:
    for kind, (_, _, _, template) in KINDS.items():
        if template:
            check(scratch, kind)
    check_tools(scratch)
    check_added(scratch)
    check_refusals(scratch)
