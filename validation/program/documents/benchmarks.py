#!/usr/bin/env python3
"""The tables of docs/benchmarks.md are made of validation/benchmarks/records.tsv, where each measured number is a line.
    benchmarks.py                    compare the page with the records, and check the records
    benchmarks.py --write            write the tables into the page
    benchmarks.py --print [SUBJECT]  print all records, or those of a subject, as tables"""
import os
import re
import sys

ROOT = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", ".."))
FOLDER = os.path.join(ROOT, "validation", "benchmarks")
PAGE = os.path.join(ROOT, "docs", "benchmarks.md")
MOST_WORDS = 1500  # of the page, its tables aside
FIELDS = ["subject", "what", "number", "unit", "range", "peer", "target", "machine", "date", "command", "main"]


def rows_of(name):
    """The rows of a file of tab-separated values as dictionaries, each with its line number as `line`."""
    rows, fields = [], None
    with open(os.path.join(FOLDER, name), encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if line.startswith("#"):
                continue
            values = line.rstrip("\n").split("\t")
            if fields is None:
                fields = values
            else:
                rows.append({"line": number, "fields": len(values) == len(fields), **dict(zip(fields, values))})
    return fields, rows


def faults_of(fields, records, machines):
    if fields != FIELDS:
        return [f"records.tsv: its columns are {fields}, not {FIELDS}"]
    faults, seen = [], {}
    for record in records:
        def fault(text):
            faults.append(f"validation/benchmarks/records.tsv:{record['line']}: {text}")
        if not record["fields"]:
            fault(f"does not have {len(FIELDS)} columns")
            continue
        if not re.fullmatch(r"-?\d+(\.\d+)?", record["number"]):
            fault(f"{record['number']} is no number")
        if not re.fullmatch(r"\d{4}-(0[1-9]|1[0-2])-([0-2]\d|3[01])", record["date"]):
            fault(f"{record['date']} is no date like 2026-11-20")
        if record["machine"] not in machines:
            fault(f"machine {record['machine']} is not in machines.tsv")
        if record["main"] not in ("", "yes"):
            fault("its last column is yes or empty")
        for field in ("subject", "what", "unit", "command"):
            if not record[field]:
                fault(f"has no {field}")
        if record["unit"] == "times" and not record["peer"]:
            fault("says how many times, and not of what")
        same = tuple(record[field] for field in FIELDS if field not in ("number", "range", "main"))
        if same in seen:
            fault(f"is the record of line {seen[same]} again")
        seen.setdefault(same, record["line"])
    return faults


def result(record):
    text = record["number"] if "." in record["number"] else f"{int(record['number']):,}"
    return f"{text} {record['unit']}" + (f" ({record['range']})" if record["range"] else "")


def table(records, machines, command):
    """Tables in the order of the file; with `command`, a table for each subject with the commands."""
    head = ["what", "result", "compared with", "target", "machine", "date"] + (["command"] if command else [])
    if not command:
        head.insert(0, "subject")
    lines, subject = [], None
    for record in records:
        if subject is None or (command and record["subject"] != subject):
            if command:
                lines += [f"## {record['subject']}", ""] if not lines else ["", f"## {record['subject']}", ""]
            lines += ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
        cells = [record["what"], result(record), record["peer"], record["target"], machines[record["machine"]]["name"], record["date"]]
        if command:
            cells.append(f"`{record['command']}`")
        else:
            cells.insert(0, record["subject"] if record["subject"] != subject else "")
        subject = record["subject"]
        lines.append("| " + " | ".join(cells).replace("|  |", "| |") + " |")
    return "\n".join(re.sub(r"\|  (?=\|)", "| ", re.sub(r"\|  (?=\|)", "| ", line)) for line in lines) + "\n"


def written(text, records, machines):
    """The page with its tables as the records say."""
    made = {
        "records": table([record for record in records if record["main"]], machines, command=False),
        "machines": "| machine | what it is |\n|---|---|\n" + "".join(f"| {row['name']} | {row['what']} |\n" for row in machines.values()),
    }
    for name, rows in made.items():
        pattern = rf"(<!-- {name}: [^\n]*-->\n)(.*?)(<!-- end of {name} -->)"
        if not re.search(pattern, text, re.S):
            raise SystemExit(f"docs/benchmarks.md has no lines <!-- {name}: ... --> and <!-- end of {name} -->")
        text = re.sub(pattern, lambda found: found[1] + "\n" + rows + "\n" + found[3], text, flags=re.S)
    return text


def main():
    fields, records = rows_of("records.tsv")
    machines = {row["machine"]: row for row in rows_of("machines.tsv")[1]}
    faults = faults_of(fields, records, machines)
    if not faults and "--print" in sys.argv[1:2]:
        chosen = [record for record in records if record["subject"] in sys.argv[2:] or not sys.argv[2:]]
        subjects = dict.fromkeys(record["subject"] for record in records)
        print(table(chosen, machines, command=True) if chosen else "subjects: " + ", ".join(subjects))
        return 0
    with open(PAGE, encoding="utf-8") as file:
        text = file.read()
    if not faults:
        page = written(text, records, machines)
        if "--write" in sys.argv[1:]:
            with open(PAGE, "w", encoding="utf-8") as file:
                file.write(page)
        elif page != text:
            faults.append("docs/benchmarks.md is not what the records say: run validation/program/documents/benchmarks.py --write")
        words = len([word for line in page.split("\n") if not line.startswith("|") for word in line.split()])
        if words > MOST_WORDS:
            faults.append(f"docs/benchmarks.md has {words} words outside of its tables, of {MOST_WORDS} at most")
    # A check that finds nothing to look at checks nothing.
    if len(records) < 300:
        faults.append(f"only {len(records)} records were found in validation/benchmarks/records.tsv")
    shown = sum(1 for record in records if record["main"])
    print("\n".join(faults) if faults else f"docs/benchmarks.md shows {shown} of {len(records)} records")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
