"""A checkpoint in a storage, as the uploader writes it."""

import hashlib
import json
import os

PIECE = 8 << 20


def store(folder, parts, version=3):
    """Makes the folder of a checkpoint of these parts, by their keys."""
    os.makedirs(os.path.join(folder, "data"))
    described = []
    for key, data in parts.items():
        pieces = []
        for at in range(0, len(data), PIECE):
            piece = data[at : at + PIECE]
            pieces.append({"bytes": len(piece), "sha256": hashlib.sha256(piece).hexdigest()})
            with open(os.path.join(folder, "data", pieces[-1]["sha256"]), "wb") as file:
                file.write(piece)
        # Whoever has no pieces writes null, as Go does.
        described.append({"key": key, "bytes": len(data), "hash": "0" * 64, "pieces": pieces or None})
    job = {"namespace": "team", "name": "digits", "uid": "u"}
    manifest = {"version": version, "job": job, "attempt": 1, "round": 7, "step": 9, "written": "2026-01-01T00:00:00Z", "parts": described}
    with open(os.path.join(folder, "manifest.json"), "w", encoding="utf-8") as file:
        json.dump(manifest, file)
