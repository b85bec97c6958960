# What stands beside a model's tokenizer in its folder, for worker.py: files of JSON, read with care.
import base64
import json
import os
import stat
import struct

MOST_VOCAB = 2**31 - 1  # ids are int32
MOST_BYTES = 64 << 20  # of a file beside tokenizer.json
AGAIN = "Get the model's files again"
PACKAGES = "tokenizers 'jinja2>=3.1.6'"  # what pip is to install


def read_text(path):
    """All of a file. Others than regular ones may have no end, or never begin."""
    with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError("it is a folder, pipe or device, and no regular file")
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise ValueError(f"it is larger than {MOST_BYTES >> 20} MiB")
    return data.decode()


def read_json(folder, name):
    """The object of a file; an empty one where there is no file."""
    path = os.path.join(folder, name)
    try:
        read = json.loads(read_text(path))
    except FileNotFoundError:
        return {}
    except RecursionError:
        raise Fault(f"{path}: it cannot be read: it is nested too deeply. {AGAIN}.")
    except (OSError, ValueError) as error:
        raise Fault(f"{path}: it cannot be read: {error}. {AGAIN}.")
    if not isinstance(read, dict):
        raise Fault(f"{path}: it is {shown(read)}, and must be an object of JSON. {AGAIN}.")
    return read


def tokenizer_config(folder):
    """That of a tokenizer. special_tokens_map.json comes before it where it does not say its own added tokens, as in transformers."""
    config = read_json(folder, "tokenizer_config.json")
    more = {} if "added_tokens_decoder" in config else read_json(folder, "special_tokens_map.json")
    return {**config, **{key: value for key, value in more.items() if value is not None}}


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


def check_charsmaps(path):
    """The package takes as much memory as such a map says that its trie has, before it looks whether that is there, and before it reads what follows."""
    with open(path, "rb") as file:
        data = file.read()
    if b"precompiled_charsmap" not in data:
        return

    def check(pairs):
        for key, value in pairs:
            if key == "precompiled_charsmap" and isinstance(value, str) and is_cut(value):
                raise Fault(f"{path}: the precompiled_charsmap of its normalizer is cut or damaged. {AGAIN}.")

    try:
        json.loads(data, object_pairs_hook=check)
    except (RecursionError, ValueError) as error:
        raise Fault(f"{path}: it cannot be read: {error}. {AGAIN}.")


def is_cut(charsmap):
    try:
        charsmap = base64.b64decode(charsmap)
    except ValueError:
        return True
    return len(charsmap) >= 4 and struct.unpack_from("<I", charsmap)[0] > len(charsmap) - 4
