"""The version of the package is the operator's: CONCERTINA_VERSION, as everything else of a release is built with."""

import email
import os
import pathlib
import re

import setuptools

_RELEASE = re.compile(r"v?[0-9]+(\.[0-9]+)*([-_.]?(a|b|c|rc|alpha|beta|pre)[-_.]?[0-9]*)?", re.ASCII)


def version() -> str:
    """An sdist says what it was built as, whatever is said where it is installed. What is no version of Python packages, as the
    name of a commit, is kept behind one below all releases."""
    sdist = pathlib.Path(__file__).with_name("PKG-INFO")
    if sdist.exists():
        return email.message_from_string(sdist.read_text("utf-8"))["Version"]
    said = os.environ.get("CONCERTINA_VERSION", "")
    if _RELEASE.fullmatch(said):
        return said.removeprefix("v")
    name = ".".join(re.findall("[a-z0-9]+", said.lower()))
    return f"0.dev0+{name}" if name not in ("", "dev") else "0.dev0"


setuptools.setup(version=version())
