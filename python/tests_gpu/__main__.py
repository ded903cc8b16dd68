"""Runs all of them, several files at once: python3 -m tests_gpu [--logs FOLDER] [FILE …].

Each runs in a process of its own, whose output is shown when a test of it has failed, or is kept in a folder. Ends with 1 where
there is no GPU.
"""

import argparse
import concurrent.futures
import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

try:
    import torch
except ImportError:
    sys.exit(f"test-gpu: {sys.executable} has no PyTorch: name a Python that has one, make test-gpu PYTHON=…")

from tests_gpu import DEVICE

AT_ONCE = 8
ALONE = "test_local_nccl", "test_nccl", "test_stragglers"
"""They want the GPU for themselves: ranks that wait for each other on it take turns with whatever else computes there."""
SECONDS = int(os.environ.get("TEST_SECONDS", 540))
"""After which a file's tests end with the stacks of their threads."""
REPORT = 30
"""So many seconds before that they ask no member of a world for anything but where it stands."""


def missing() -> str:
    """Why the tests cannot be run here; empty when they can."""
    if DEVICE != "cuda" or torch.cuda.is_available():
        return ""
    built = f"which was built for CUDA {torch.version.cuda}" if torch.version.cuda else "which was built without CUDA"
    return f"PyTorch {torch.__version__}, {built}, sees no GPU on this machine: run the tests on one that has one"


def run(module: str) -> tuple[int, str, float]:
    """The exit code of a file's tests, what they have printed, and how many seconds they took."""
    begin = time.monotonic()
    command = [sys.executable, "-X", "faulthandler", "-W", "ignore", "-m", "unittest", "--buffer", "--verbose", "--durations", "0"]
    env = os.environ | {"TEST_MEMBERS_SECONDS": str(max(0, SECONDS - REPORT))}
    with tempfile.TemporaryFile() as output:
        # In a session of its own, so that nothing is left on the GPU of what it has started.
        process = subprocess.Popen([*command, module], stdout=output, stderr=output, env=env, start_new_session=True)
        try:
            process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGABRT)
        finally:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(0)
        return process.returncode, output.read().decode(errors="replace"), time.monotonic() - begin


def tell(name: str, code: int, text: str, seconds: float, logs: pathlib.Path | None) -> bool:
    """Says what has become of a file's tests; whether one has failed."""
    if logs:
        (logs / f"{name}.log").write_text(text)
    last = next((line for line in reversed(text.splitlines()) if line.strip()), "")
    print(f"{name}: {last if code in (0, 1) else f'ended with {code}'} ({seconds:.0f} s)", flush=True)
    if code and not logs:
        print(text, flush=True)
    return code != 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests_gpu")
    parser.add_argument("--logs", type=pathlib.Path)
    parser.add_argument("files", nargs="*")
    arguments = parser.parse_args()
    if why := missing():
        print(f"test-gpu: {why}", file=sys.stderr)
        return 1
    found = sorted(path.stem for path in pathlib.Path(__file__).parent.glob("test_*.py"))
    if strangers := set(arguments.files) - set(found):
        print(f"test-gpu: there is no {', '.join(sorted(strangers))}: there are {', '.join(found)}", file=sys.stderr)
        return 1
    names = arguments.files or found
    device = torch.cuda.get_device_name() if DEVICE == "cuda" else DEVICE
    print(f"PyTorch {torch.__version__} on {device}", flush=True)
    failed = 0
    for together in [name for name in names if name not in ALONE], *([name] for name in names if name in ALONE):
        with concurrent.futures.ThreadPoolExecutor(min(AT_ONCE, os.cpu_count() or 1)) as threads:
            jobs = {threads.submit(run, f"tests_gpu.{name}"): name for name in together}
            for job in concurrent.futures.as_completed(jobs):
                failed += tell(jobs[job], *job.result(), arguments.logs)
    print(f"test-gpu: {len(names) - failed} of {len(names)} files passed", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
