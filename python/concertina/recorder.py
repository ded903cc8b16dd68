"""What PyTorch's flight recorder knows of the last exchanges: which ones a rank has begun and not ended."""

import contextlib
import json
from typing import Any

import torch

_SHOWN = 24
"""Of either kind."""

_KEYS = ("process_group", "profiling_name", "collective_seq_id", "p2p_seq_id", "state", "input_sizes", "input_dtypes", "time_created_ns", "timeout_ms")


def describe() -> str:
    """The newest of them, one a line, with those last that have not ended; empty where nothing is recorded.

    PyTorch is asked for JSON: what it pickles has the stacks of exchanges as well, which are looked up with the interpreter's lock.
    """
    entries = _entries()
    if not entries:
        return ""
    ended = [entry for entry in entries if entry.get("state") == "completed"]
    pending = [entry for entry in entries if entry.get("state") != "completed"]
    lines = [json.dumps({key: entry[key] for key in _KEYS if key in entry}) for entry in ended[-_SHOWN:] + pending[-_SHOWN:]]
    lines.append(
        f"concertina: these are the newest exchanges of PyTorch's flight recorder, which has {len(entries)}; {len(pending)} of them have "
        "not ended"
    )
    return "\n".join(lines) + "\n"


def _entries() -> list[dict[str, Any]]:
    """What is recorded. NCCL's groups have a recorder of their own; the other one is of newer backends, and of gloo."""
    library = getattr(torch._C, "_distributed_c10d", None)
    for name in ("_dump_nccl_trace_json", "_dump_fr_trace_json"):
        with contextlib.suppress(Exception):
            found = json.loads(getattr(library, name)()).get("entries")
            if entries := [entry for entry in found or () if isinstance(entry, dict)]:
                return entries
    return []
