# Rows of Parquet files for io/tokens, after channel.py and conversation.py: pyarrow reads them batch by batch of one row group at a time.
import contextlib
import json
import struct

missing = None
try:
    import pyarrow
    import pyarrow.parquet
except ImportError as error:
    pyarrow, missing = None, error

ANSWER_BYTES = 1 << 20  # about so much of a file is sent at once
BATCH_BYTES = 4 << 20  # and about so much of it is decoded at once
MOST_ROWS = 8192
CONVERSATION = (*((key,) for key in LISTS), *PAIRS)


def without_any_nulls(value):
    """A struct has all keys of its column, and null where a row has none."""
    if isinstance(value, dict):
        return {key: without_any_nulls(one) for key, one in value.items() if one is not None}
    return [without_any_nulls(one) for one in value] if isinstance(value, list) else value


class Rows:
    """The rows of a file, one after the other: (before, text) of bytes, where `before` does not count."""

    def __init__(self, path, field, chat, preferences):
        self.path = path
        with self.faults():
            self.file = pyarrow.parquet.ParquetFile(path, pre_buffer=False, buffer_size=ANSWER_BYTES)
            self.names = self.file.schema_arrow.names
        self.columns = self.choose_preferences() if preferences else self.choose_conversation(field) if chat else self.choose_text(field)
        self.objects, self.number, self.rows = chat or preferences, 0, self.file.metadata.num_rows
        self.left = iter(self.all_rows())

    @contextlib.contextmanager
    def faults(self):
        try:
            yield
        except (Fault, MemoryError):
            raise
        except Exception as error:  # pyarrow has many kinds
            words = " ".join(str(error).split())[:300]
            raise Fault(f"{self.path}: pyarrow {pyarrow.__version__} cannot read it as Parquet: {words}. Get the file again.")

    def refuse(self, what):
        names = ", ".join(f'"{name}" of {self.type_of(name)}' for name in self.names[:20]) or "none"
        raise Fault(f"{self.path}: {what}. Its columns: {names}{' and more' if len(self.names) > 20 else ''}. Name one: --field NAME.")

    def type_of(self, name):
        return self.file.schema_arrow.types[self.names.index(name)]

    def require_column(self, name, text):
        if name not in self.names:
            self.refuse(f'there is no column "{name}"')
        if self.names.count(name) > 1:
            self.refuse(f'several columns are called "{name}"')
        kind = self.type_of(name)
        plain = kind.value_type if pyarrow.types.is_dictionary(kind) else kind
        texts = ("string", "large_string", "string_view", "binary", "large_binary", "binary_view")
        if text and str(plain) not in texts:
            self.refuse(f'the column "{name}" is of {kind}, not text')

    def choose_text(self, field):
        """As of JSON lines: the field, or "text", or "prompt" and "completion"."""
        pair = [name for name in ("prompt", "completion") if name in self.names]
        if not field and pair and "text" in self.names:
            self.refuse('there is a column "text" and also a "prompt" or "completion"')
        if not field and ("chosen" in self.names or "rejected" in self.names):
            self.refuse('there is a column "chosen" or "rejected": preference pairs, which --preferences takes')
        if not field and pair and "label" in self.names:
            self.refuse('there is a column "label" with a "completion": preference data for KTO, which --preferences takes')
        columns = [field] if field else ["prompt", "completion"] if pair else ["text"]
        for name in columns:
            self.require_column(name, True)
        return columns

    def choose_conversation(self, field):
        if field:
            columns = [field]
        else:
            columns = next(([*kind] for kind in CONVERSATION if kind[0] in self.names or kind[-1] in self.names), None)
            if columns is None:
                self.refuse('there is no column "messages" or "conversations", nor "instruction" and "output", nor "prompt" and '
                            '"completion"')
        for name in columns:
            self.require_column(name, False)
        return columns + [name for name in self.names if name not in columns and name not in ABOUT_A_LINE]

    def choose_preferences(self):
        """All that may say something of a pair, or of a completion with a label: which of them is for preferences.py to say."""
        if not {"chosen", "rejected", "label", "kto_tag"}.intersection(self.names):
            self.refuse('there are no columns "chosen" and "rejected", and no "label" or "kto_tag"')
        columns = [name for name in self.names if name not in ABOUT_A_LINE]
        for name in columns:
            self.require_column(name, False)
        return columns

    def all_rows(self):
        for k in range(self.file.num_row_groups):
            group = self.file.metadata.row_group(k)
            rows = max(1, min(MOST_ROWS, BATCH_BYTES * group.num_rows // max(1, group.total_byte_size)))
            for batch in self.file.iter_batches(batch_size=rows, row_groups=[k], columns=self.columns, use_threads=False):
                yield from self.conversations(batch) if self.objects else self.texts(batch)

    def texts(self, batch):
        columns = []
        for name in self.columns:
            column = batch.column(batch.schema.get_field_index(name))
            if pyarrow.types.is_dictionary(column.type):
                column = column.dictionary_decode()
            columns.append(column.cast(pyarrow.large_binary()).to_pylist())
        for row in zip(*columns):
            self.number += 1
            for name, value in zip(self.columns, row):
                if value is None:
                    raise Fault(f'{self.path}: row {self.number}: "{name}" is null. Remove such rows, or name another column: --field '
                                f'NAME.')
            if len(row) == 2 and not row[1]:
                raise Fault(f'{self.path}: row {self.number}: "completion" is empty, so there is nothing to learn. Remove the row.')
            yield (row[0], row[1]) if len(row) == 2 else (b"", row[0])

    def conversations(self, batch):
        columns = list(zip(batch.schema.names, batch.columns))
        for i in range(batch.num_rows):
            self.number += 1
            try:
                row = without_any_nulls({name: column[i].as_py() for name, column in columns})
                yield b"", json.dumps(row, ensure_ascii=False, allow_nan=False).encode()
            except (TypeError, ValueError) as error:
                raise Fault(f"{self.path}: row {self.number}: it cannot be written as JSON: {error}. Remove the row.")

    def next(self):
        """Rows of about ANSWER_BYTES, none at the end; each (before, text)."""
        answer, count, size = [], 0, 0
        with self.faults():
            for before, text in self.left:
                answer += [struct.pack("<Q", len(before)), before, struct.pack("<Q", len(text)), text]
                count, size = count + 1, size + len(before) + len(text)
                if size >= ANSWER_BYTES or count == MOST_ROWS:
                    break
        return b"".join([struct.pack("<Q", count), *answer])


def open_rows(request):
    require(pyarrow, "pyarrow", missing, "pyarrow")
    global rows
    asked = json.loads(request.data)
    rows = Rows(asked["path"], asked["field"], asked["chat"], asked["preferences"])
    unused = [name for name in rows.names if name not in rows.columns]
    return json.dumps({"rows": rows.rows, "unused": unused}).encode()


rows = None

if __name__ == "__main__":
    serve({b"open": open_rows, b"next": lambda request: rows.next()}, int(sys.argv[1]))
