#!/usr/bin/env python3
"""scripts/english finds what it must find, leaves out what holds no sentences, and lets no count grow.
    english_test.py"""
import os
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
LONG = "The run " + "is very " * 15 + "long."  # 33 words
ALLOWED = "validation/style/allowed.tsv"


class English(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.tree = folder.name

    def write(self, name, text):
        path = os.path.join(self.tree, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)

    def run_english(self, *words):
        command = [sys.executable, os.path.join(ROOT, "scripts/english"), "--tree", self.tree, *words]
        return subprocess.run(command, capture_output=True, text=True)

    def kinds(self, text):
        """"LINE KIND" of each finding of a page with that text."""
        self.write("docs/a.md", text)
        lines = self.run_english("docs/a.md").stdout.splitlines()
        return [" ".join(line.split(":")[1:3]).replace("  ", " ") for line in lines]

    def allow(self, *counts):
        self.write(ALLOWED, "file\tlong\topening\twide\tcoined\ndocs/a.md\t" + "\t".join(map(str, counts)) + "\n")

    def read(self, name):
        with open(os.path.join(self.tree, name), encoding="utf-8") as file:
            return file.read()

    def test_long_sentences(self):
        self.assertEqual(self.kinds(f"# Head\n\nShort one.\n{LONG}\n"), ["4 long"])
        self.assertEqual(self.kinds("One sentence of few words. " * 10 + "\n"), ["1 wide"])
        # A sentence that goes over lines, and one in an item of a list that goes over lines.
        self.assertEqual(self.kinds(LONG.replace(" is", "\nis") + "\n"), ["1 long"])
        self.assertEqual(self.kinds("- Short.\n- " + LONG.replace(" is", "\n  is") + "\n"), ["2 long"])
        # Items do not join to one sentence, and a period in a number or a name ends none.
        self.assertEqual(self.kinds("- six words are in this item\n" * 8), [])
        self.assertEqual(self.kinds(LONG.replace("run", "model of 1.5 B, e.g. Llama 3.2,\n") + "\n"), ["1 long"])

    def test_code_counts_as_one_word(self):
        self.assertEqual(self.kinds("See `" + "word " * 40 + "`.\n"), ["1 wide"])
        self.assertEqual(self.kinds("See [this](" + "word/" * 40 + ").\n"), ["1 wide"])

    def test_what_holds_no_sentences(self):
        code = (f"```\n{LONG}\n```\n", f"Text:\n\n    {LONG}\n\n    {LONG}\n")
        for text in (*code, f"| a |\n|---|\n| {LONG} |\n", f"# {LONG}\n", f"<!-- {LONG}\n{LONG} -->\n"):
            self.assertEqual(self.kinds(text), [], text)
        self.assertEqual(self.kinds(f"```\ncode\n```\n\n{LONG}\n"), ["5 long"])

    def test_openings(self):
        text = "Of these two count.\n\nIt runs. What it finds is kept.\n\nWhat is it?\n\nWith what it has it ends.\n\nOften it ends.\n"
        found = self.kinds(text)
        self.assertEqual(found, ["1 opening", "3 opening", "7 opening"])

    def test_coined_words(self):
        self.write("docs/a.md", "The run went back\nto a checkpoint, and `went back` is code.\n")
        self.assertIn("docs/a.md:1: coined: \"went back\": roll back", self.run_english("docs/a.md").stdout)
        self.assertEqual(len(self.kinds("It went back.\n")), 1)

    def test_python_has_columns(self):
        self.write("validation/a.py", "# " + "x " * 70 + "\n")
        found = self.run_english()
        self.assertEqual(found.returncode, 1)
        self.assertIn("validation/a.py:1: 1 lines over 140 columns, 0 allowed", found.stdout)

    def messages(self, name, text):
        """"LINE KIND" of each finding of a source of the program."""
        self.write(name, text)
        lines = self.run_english(name).stdout.splitlines()
        return [" ".join(line.split(":")[1:3]).replace("  ", " ") for line in lines]

    def test_messages_of_sources(self):
        words = "word " * 13
        # Literals that stand side by side or are joined by + are one message; a comment, another argument and a short name are none.
        self.assertEqual(self.messages("src/deck/a.cpp", f'\nf("{words}"\n  "{words}");\n'), ["2 long"])
        self.assertEqual(self.messages("src/deck/a.cpp", f'f("{words}" + name(1) + "{words}");\n'), ["1 long"])
        self.assertEqual(self.messages("src/deck/a.cpp", f'f("{words}", "{words}"); // "{words * 2}"\n'), [])
        self.assertEqual(self.messages("src/deck/a.cpp", f'f("{words[:-1]}. Next {words}");\n'), [])
        self.assertEqual(self.messages("kernels/a.cu", 'f("Of these two it takes one", "What it is");\n'), ["1 opening"])
        self.assertEqual(self.messages("kernels/a.cu", 'f("the \\"run\\" went back a step", "{}", \'"\', "go back");\n'), ["1 coined"])
        self.assertEqual(self.messages("io/tokens/a.py", f'x = "short"\nf(f"{words}{{x}} "\n  "{words}")\n'), ["2 long"])
        self.assertEqual(self.messages("slurm/a.sh", f'#!/bin/bash\necho "{words * 2}"\nx="{words * 2}"\n'), ["2 long"])
        self.assertEqual(self.messages("validation/a.cpp", f'f("{words * 2}");\n'), [])

    def test_messages_are_counted_by_folder(self):
        self.write("src/deck/schema/a.cpp", 'f("Of these two it takes one");\n')
        self.write("src/deck/rules/b.cpp", 'f("What it finds is kept");\n')
        self.assertIn("src/deck/:1: 2 openings with Of, What, Whose or Where, 0 allowed", self.run_english("--quiet").stdout)
        self.assertEqual(self.run_english("src/deck/").stdout.count("opening"), 2)
        self.write(ALLOWED, "src/deck/\t0\t2\t0\t0\n")
        self.assertEqual(self.run_english("--quiet").returncode, 0)

    def test_counts_do_not_grow(self):
        self.write("docs/a.md", f"{LONG} {LONG}\n".replace(". ", ".\n"))
        self.assertIn("docs/a.md:1: 2 sentences over 30 words, 0 allowed", self.run_english("--quiet").stdout)
        self.allow(2, 0, 0, 0)
        self.assertEqual(self.run_english("--quiet").returncode, 0)
        self.assertIn("english: docs/a.md: 2, 0, 0, 0", self.run_english().stdout)
        self.allow(1, 0, 0, 0)
        self.assertEqual(self.run_english("--quiet").returncode, 1)

    def test_wrap(self):
        words = "word `code of words` " * 12 + "end."
        text = f"# {words}\n\n- {words}\n- Short.\n\n> {words}\n> More.\n\n```\n{words}\n```\n\n| {words} |\n\nFirst line.\nSecond line.\n"
        self.write("docs/a.md", text)
        self.assertEqual(self.run_english("--wrap", "docs/a.md").returncode, 0)
        made = self.read("docs/a.md")
        self.assertEqual(self.run_english("docs/a.md").stdout.count("wide"), 0)
        self.assertEqual(re.sub(r"\s+(> )?", " ", made), re.sub(r"\s+(> )?", " ", text))  # nothing but breaks of lines
        for line in (f"# {words}", f"```\n{words}\n```", f"| {words} |", "- Short.", "First line.\nSecond line.", "\n  ", "\n> "):
            self.assertIn(line, made)
        self.assertTrue(all(line.count("`") % 2 == 0 for line in made.replace("```", "").split("\n")))
        self.assertEqual(self.run_english("--wrap", "docs/a.md").returncode, 0)
        self.assertEqual(self.read("docs/a.md"), made)

    def test_lower_lowers_and_does_not_raise(self):
        self.write("docs/a.md", f"{LONG}\n\nOf two it takes one.\n")
        self.allow(3, 0, 5, 1)
        found = self.run_english("--lower")
        self.assertEqual(found.returncode, 1)
        self.assertIn("docs/a.md:1: 1 openings with Of, What, Whose or Where, 0 allowed", found.stdout)
        self.assertIn("docs/a.md\t1\t0\t0\t0\n", self.read(ALLOWED))
        self.write("docs/a.md", "It runs.\n")
        self.assertEqual(self.run_english("--lower").returncode, 0)
        self.assertNotIn("docs/a.md", self.read(ALLOWED))

    def test_this_tree_names_files_that_are_there(self):
        with open(os.path.join(ROOT, ALLOWED), encoding="utf-8") as file:
            rows = [line.split("\t") for line in file if not line.startswith(("#", "file\t"))]
        self.assertTrue(rows)
        self.assertEqual([row[0] for row in rows], sorted(row[0] for row in rows))
        self.assertTrue(all(len(row) == 5 for row in rows))


if __name__ == "__main__":
    unittest.main()
