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
            raise ValueError("it is a folder, pipe or device, not a regular file")
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
        raise Fault(f"{path}: it is {shown(read)}, but must be an object of JSON. {AGAIN}.")
    return read


# Keys of tokenizer_config.json that are used, and those that change no token of a text beside a tokenizer.json: of padding, of decoding, of other files, of slow
# tokenizers. What ends with _token or _token_id is a special token's.
CONFIG_USED = frozenset("chat_template added_tokens_decoder extra_special_tokens additional_special_tokens split_special_tokens".split())
CONFIG_HARMLESS = frozenset(
    "tokenizer_class model_max_length max_len max_length padding padding_side pad_to_multiple_of pad_token_type_id truncation_side "
    "truncation_strategy stride "
    "clean_up_tokenization_spaces spaces_between_special_tokens name_or_path use_fast legacy from_slow sp_model_kwargs add_bos_token "
    "add_eos_token add_prefix_space "
    "auto_map processor_class special_tokens_map_file tokenizer_file vocab_file merges_file vocab_size errors use_default_system_prompt "
    "do_lower_case do_basic_tokenize "
    "lowercase strip_accents tokenize_chinese_chars never_split model_input_names model_type response_schema backend is_local "
    "local_files_only init_inputs "
    "device_map trust_remote_code remove_space keep_accents do_lowercase_text transformers_version".split())
NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")  # in the order in which they get numbers
TOKEN_SIDES = ("lstrip", "rstrip", "single_word", "normalized")


def unused_keys(config):
    return [key for key, value in config.items()
            if value is not None and key not in CONFIG_USED and key not in CONFIG_HARMLESS and not key.endswith(("_token", "_token_id"))]


def listed_tokens(config, path):
    """Those of added_tokens_decoder, in the order of their numbers: what an AddedToken is made of."""
    listed = config.get("added_tokens_decoder") or {}
    rows = listed.items() if isinstance(listed, dict) else [("", listed)]
    for number, token in rows:
        if not number.isdecimal() or not isinstance(token, dict) or not is_text(token.get("content")):
            raise Fault(f'{path}: "added_tokens_decoder" has {shown(number)}: {shown(token)}, but must have objects with "content" by the '
                        f'numbers of tokens. {AGAIN}, '
                        "or correct it.")
    return [token_parts(token) for _, token in sorted(rows, key=lambda row: int(row[0]))]


def in_order_of_numbers(config, of_class):
    """Those that have a usual name come first, and last those that a class has beside them."""
    order = [*NAMED_TOKENS, *(key for key in config if key not in of_class)]
    return {key: config[key] for key in dict.fromkeys([*order, *config]) if key in config}


def special_tokens(config, path):
    """Those that have a name, and those that have none, likewise."""
    some = {}
    for key, value in config.items():
        if key in ("extra_special_tokens", "additional_special_tokens"):
            more = value or []
            some |= more if isinstance(more, dict) else {f"{key}[{k}]": token for k, token in enumerate(more if isinstance(more, list) else [more])}
        elif key in NAMED_TOKENS or key.endswith("_token") and not isinstance(value, (bool, int, float)):
            some[key] = value
    parts = []
    for key, token in some.items():
        if special_token(some, key, path):
            parts.append({**token_parts(token if isinstance(token, dict) else {"content": token}), "special": True})
    return parts


def token_parts(token):
    return {"content": token["content"], **{key: bool(token[key]) for key in (*TOKEN_SIDES, "special") if key in token}}


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
        raise Fault(f'{path}: "{key}" is {shown(token)}, but must be the text of a token, or an object with that as "content". {AGAIN}, '
                    f'or correct it.')
    return text or ""


def end_ids(config, path):
    ids = config.get("eos_token_id")
    ids = [] if ids is None else ids if isinstance(ids, list) else [ids]
    for one in ids:
        if type(one) is not int or not 0 <= one < MOST_VOCAB:  # True is an int too
            raise Fault(f'{path}: "eos_token_id" has {shown(one)}, but must be the number of a token, a list of such, or null. {AGAIN}, '
                        f'or correct it.')
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
