"""What the agent is told of snapshots, and of what hinders them."""

import errno
import mmap
import os
from collections.abc import Sequence
from typing import Any

from concertina import snapshot
from concertina.codec import DeviceError


_CHANGING = "suspend the job to change it, or with auto for new volumes; it adds to the container's memory"


def told(files: list[snapshot.File], sizes: list[int]) -> dict[str, Any]:
    """What the agent is told of files that were written."""
    names = [os.path.basename(file.path) for file in files]
    if files[0].key is None:
        return {"file": names[0], "bytes": sizes[0], "reuses": True}
    parts = zip(files, names, sizes, strict=True)
    return {"parts": [{"key": file.key, "file": name, "bytes": size} for file, name, size in parts], "reuses": True}


def measured(image: snapshot.Image, files: Sequence[snapshot.File], periodic: bool) -> dict[str, Any]:
    """What the agent is told of the size of a state, also when it could not be written: how large its volume should be goes by
    it. files are those that this process writes. At a barrier there are others than of a periodic snapshot, but for a state in
    shards, of which other ranks have about as much in theirs."""
    if image.rank:
        own = sum(file.size for file in files if file.head)
        shards = sum(file.size for file in files if not file.head)
        shards *= image.rank.of
        return {"size": {"state": own + shards, "own": own, "shards": shards, "written": room(files)}}
    whole = image.whole("").size
    own = image.own("", "").size if image.bytes - image.shared >= snapshot.LEAST_SHARED else whole
    return {"size": {"state": whole, "own": own, "written": room(files if periodic else [])}}


def room(files: Sequence[snapshot.File]) -> int:
    """How much memory files take."""
    return sum(-(-file.size // mmap.PAGESIZE) * mmap.PAGESIZE for file in files)


def told_of(error: Exception, files: Sequence[snapshot.File], done: int, whole: int) -> str:
    """What is told of an error after so many of these files, of a state with so many bytes."""
    if isinstance(error, DeviceError):
        return str(error)
    text = f"{getattr(error, 'strerror', None) or repr(error)}: {files[min(done, len(files) - 1)].path}"
    if getattr(error, "errno", None) not in (errno.ENOSPC, errno.EDQUOT):
        return text
    if any((file.key or "").startswith("d") for file in files):
        # How many copies of other ranks' shards lie there too knows the operator alone.
        return f"{text}: the job's condition SnapshotsFit says which spec.checkpoint.memory would do; {_CHANGING}"
    written = room(files)
    need, stored = room_for(written, whole, stored=False), room_for(written, whole, stored=True)
    text += f": two snapshots beside this one must fit. spec.checkpoint.memory: {_quantity(need)} would do"
    if _quantity(stored) != _quantity(need):
        text += f", with a storage {_quantity(stored)}"
    return f"{text}. S{_CHANGING[1:]}"


def room_for(written: int, whole: int, *, stored: bool, own: int = 0, shards: int = 0, copies: int = 1) -> int:
    """How many bytes a worker needs for its snapshots when it writes so many of each, of a state with so many: two are kept while
    a third is written, or all of one, which whoever begins with it loads, beside its own part of another. With a storage, one that was pushed out keeps its memory for as long as it is uploaded; and one that is
    brought back is whole. Of a state of which the ranks have `shards` bytes between them, and each worker `own` beside that, two more
    are kept, with the copies of other ranks' shards that make `copies` of each, and of one that is brought back there are up to four
    times what it writes. The operator reckons so as well: testdata/room.json."""
    if shards > 0:
        copied = written + (max(1, copies) - 1) * max(0, written - own)
        return 3 * written + copied + (max(copied + written, min(whole, 4 * written)) if stored else copied)
    return 2 * written + max(2 * written, whole) if stored else max(3 * written, whole + written)


def _quantity(size: int) -> str:
    """At least so many bytes, as Kubernetes writes them."""
    mib = max(1, -(-size // (1 << 20)))
    return f"{mib}Mi" if mib < 10 << 10 else f"{-(-mib // 1024)}Gi"


def not_copied(error: BaseException) -> str:
    if isinstance(error, DeviceError):
        return str(error)
    return (
        f"no memory for a copy of the state ({str(error) or type(error).__name__}): raise resources.limits.memory of the "
        "training container by as many bytes as the state has"
    )
