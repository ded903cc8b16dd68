"""Prints the lines that Go's tests end with: one per test, one per package.

usage: testlines.py RESULTS

It reads the JSON files of gotestsum and the logs of the end-to-end tests in that folder.
"""

import json
import pathlib
import re
import sys

LINE = re.compile(r"(--- |ok  |FAIL|panic: |Ran \d+ of \d+ Specs)")


def lines(path):
    with path.open(encoding="utf-8", errors="replace") as file:
        for text in file:
            if path.suffix != ".json":
                yield text
                continue
            try:
                yield json.loads(text).get("Output", "")
            except ValueError:  # cut off when the run was killed
                return


def main():
    for path in sorted(pathlib.Path(sys.argv[1]).glob("*")):
        if path.suffix not in (".json", ".log"):
            continue
        print(f"==> tests of {path.stem}")
        for text in lines(path):
            if LINE.match(text):
                print(text.rstrip("\n"))


if __name__ == "__main__":
    main()
