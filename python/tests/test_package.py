"""What is installed with pip: the wheel, and the sdist, in an environment that has nothing else."""

import os
import pathlib
import runpy
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
BUILD = REPOSITORY / "hack/package/build.sh"
BACKEND = pathlib.Path(os.environ.get("CONCERTINA_CACHE", REPOSITORY / ".cache"), "tools/setuptools").absolute()

ASK = """
import importlib.metadata, os, sys
import concertina
handler, = importlib.metadata.entry_points(group="torchrun.handlers", name="concertina")
folder = os.path.dirname(concertina.__file__)
print(importlib.metadata.version("concertina"), handler.value, folder.startswith(sys.prefix), *sorted(os.listdir(folder)))
"""


def run(*command, **more):
    """What it prints."""
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, **more)
    if done.returncode:
        raise AssertionError(f"{command}: code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def build(folder, version):
    """The wheel and the sdist of an operator's version."""
    wheel, sdist = run(BUILD, folder, env=os.environ | {"CONCERTINA_VERSION": version}).splitlines()
    return pathlib.Path(wheel), pathlib.Path(sdist)


class Package(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

    def test_both_install_in_an_environment_of_their_own(self):
        wheel, sdist = build(self.folder, "v1.2.3-rc.1")
        source = sorted(path.name for path in (REPOSITORY / "python/concertina").iterdir() if path.suffix in (".py", ".typed"))
        self.assertIn("py.typed", source)
        for package in (wheel, sdist):
            with self.subTest(package.name):
                self.assertIn("1.2.3rc1", package.name)
                version, handler, installed, *files = self.install(package)
                self.assertEqual((version, handler, installed), ("1.2.3rc1", "concertina.torchrun:handler", "True"))
                self.assertEqual(files, source)

    def test_the_version_is_the_operators(self):
        for operator, want in (("dev", "0.dev0"), ("", "0.dev0"), ("v2.0.0", "2.0.0"), ("1.4", "1.4"), ("v1.2.3-4-gAB_12", "0.dev0+v1.2.3.4.gab.12")):
            with self.subTest(operator), mock.patch.dict(sys.modules, setuptools=mock.Mock()) as modules:
                with mock.patch.dict(os.environ, CONCERTINA_VERSION=operator):
                    runpy.run_path(str(REPOSITORY / "python/setup.py"))
                modules["setuptools"].setup.assert_called_once_with(version=want)

    def install(self, package):
        """What a program sees that runs where only this is installed, without a network and by whom another version runs."""
        home = self.folder / f"venv{package.suffix}"
        run(sys.executable, "-m", "venv", "--without-pip", home)
        options = ["--quiet", "--disable-pip-version-check", "--no-cache-dir", "--no-index", "--no-build-isolation", "--no-compile"]
        builds = os.environ | {"PYTHONPATH": str(BACKEND), "CONCERTINA_VERSION": "v9.9.9"}
        run(sys.executable, "-m", "pip", "--python", home / "bin/python", "install", *options, package, env=builds)
        clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")} | {"PYTHONDONTWRITEBYTECODE": "1"}
        return run(home / "bin/python", "-c", ASK, cwd="/", env=clean).split()


if __name__ == "__main__":
    unittest.main()
