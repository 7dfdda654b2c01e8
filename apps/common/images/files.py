"""Images from files: CIFAR-10's binary files, or a folder with a folder of pictures for each class. No torch.

Source of CIFAR-10's layout: Krizhevsky, Learning Multiple Layers of Features from Tiny Images, and its page.
"""

import hashlib
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from apps.common.images.digits import Images
from pipelined.errors import UsageError

CIFAR_SIDE, CIFAR_CLASSES = 32, 10
RECORD_BYTES = 1 + 3 * CIFAR_SIDE**2
"""Bytes of an image: its class, then its red, green and blue places."""
HELD_OUT = "test_batch.bin"
PICTURES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".webp")
HELD_OUT_ONE_IN = 10
"""One in this number of a folder's pictures is held out, by a hash of its name."""


def is_cifar(directory: Path) -> bool:
    """Whether a directory has CIFAR-10's binary files."""
    return (directory / HELD_OUT).is_file()


def classes_of(directory: Path) -> list[str]:
    """The names of the classes of a directory, in order.

    Raises:
        UsageError: it has neither CIFAR-10's files nor folders of pictures; Pillow is not installed.
    """
    if is_cifar(directory):
        return [str(number) for number in range(CIFAR_CLASSES)]
    folders = sorted(folder for folder in directory.iterdir() if folder.is_dir()) if directory.is_dir() else []
    names = [folder.name for folder in folders if _list_pictures(folder)]
    if not names:
        fact = f"{directory} has neither {HELD_OUT} nor a folder of pictures for each class (folders: {len(folders)})"
        raise UsageError(f"{fact}; give --data CIFAR-10's binary files, or DIR/CLASS/PICTURE.png")
    if find_spec("PIL") is None:
        raise UsageError("pictures are read by Pillow, which is not installed; run pip install pipelined[images]")
    return names


@cache
def read_images(directory: Path, side: int) -> tuple[Images, Images]:
    """The images to train on, and those that are held out, as uint8.

    Args:
        side: pixels along each side to which pictures are scaled; those of CIFAR-10 stay as they are.
    Raises:
        UsageError: a file cannot be read, or is truncated; nothing is left to train on or to hold out.
    Cost: all of them in memory, 3 bytes a place.
    """
    if is_cifar(directory):
        batches = sorted(directory.glob("data_batch_*.bin"))
        return _read_records(directory, batches), _read_records(directory, [directory / HELD_OUT])
    pictures = [
        (picture, number)
        for number, name in enumerate(classes_of(directory))
        for picture in _list_pictures(directory / name)
    ]
    train = [(picture, number) for picture, number in pictures if not _is_held_out(picture)]
    held_out = [(picture, number) for picture, number in pictures if _is_held_out(picture)]
    return _open_pictures(directory, train, side), _open_pictures(directory, held_out, side)


def _read_records(directory: Path, files: Sequence[Path]) -> Images:
    """The images of some of CIFAR-10's files."""
    parts = []
    for file in files:
        raw = np.fromfile(file, np.uint8)
        if not len(raw) or len(raw) % RECORD_BYTES:
            fact = f"{file} is no file of CIFAR-10, or truncated (bytes: {len(raw):,}, each image: {RECORD_BYTES:,})"
            raise UsageError(f"{fact}; give the binary version")
        parts.append(raw.reshape(-1, RECORD_BYTES))
    records = np.concatenate(parts) if parts else np.empty((0, RECORD_BYTES), np.uint8)
    if not len(records):
        raise UsageError(f"{directory} has no data_batch_1.bin; give all of CIFAR-10's binary files")
    if (worst := int(records[:, 0].max())) >= CIFAR_CLASSES:
        raise UsageError(f"{directory} is not CIFAR-10 (a class: {worst}); give the binary version")
    return Images(records[:, 1:].reshape(-1, 3, CIFAR_SIDE, CIFAR_SIDE), records[:, 0].astype(np.int64))


def _open_pictures(directory: Path, pictures: Sequence[tuple[Path, int]], side: int) -> Images:
    """Some pictures, scaled."""
    from PIL import Image

    if not pictures:
        raise UsageError(f"too few pictures in {directory} to train on some and hold out others; give it more")
    images = np.empty((len(pictures), 3, side, side), np.uint8)
    for place, (path, _) in enumerate(pictures):
        try:
            with Image.open(path) as picture:
                images[place] = np.asarray(picture.convert("RGB").resize((side, side))).transpose(2, 0, 1)
        except OSError as error:
            raise UsageError(f"cannot read the picture {path} ({error}); remove it, or convert it") from error
    return Images(images, np.array([number for _, number in pictures], np.int64))


def _list_pictures(folder: Path) -> list[Path]:
    return sorted(file for file in folder.iterdir() if file.suffix.lower() in PICTURES)


def _is_held_out(picture: Path) -> bool:
    digest = hashlib.blake2b(f"{picture.parent.name}/{picture.name}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little") % HELD_OUT_ONE_IN == 0
