"""Token files, read with h5py."""

import h5py
import numpy as np


def read(path):
    """Documents of a token file, each as (ids, counts), and its attributes."""
    with h5py.File(path) as file:
        ids, starts = file["tokens"][:].astype(np.int64), [*file["documents"][:], len(file["tokens"])]
        mask = np.unpackbits(file["loss_mask"][:], bitorder="little")[: len(ids)] if "loss_mask" in file else np.ones(len(ids), np.uint8)
        return [(ids[a:b].tolist(), mask[a:b].tolist()) for a, b in zip(starts, starts[1:])], dict(file.attrs)
