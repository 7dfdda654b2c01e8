"""Images from files: CIFAR-10's records and folders of pictures; and what is refused."""

from importlib.util import find_spec

import numpy as np
import pytest

from apps.common.images.files import classes_of, read_images
from pipelined.errors import UsageError
from tests.absent import absent


def test_a_record_of_cifar_is_a_class_and_three_planes(tmp_path):
    planes = [[*range(4), *[colour] * 1020] for colour in (10, 20, 30)]
    record = np.array([7, *planes[0], *planes[1], *planes[2]], np.uint8)
    record.tofile(tmp_path / "test_batch.bin")
    np.concatenate((record, record)).tofile(tmp_path / "data_batch_1.bin")
    train, held_out = read_images(tmp_path, 32)
    assert (len(train), len(held_out), classes_of(tmp_path)[-1]) == (2, 1, "9")
    assert held_out.classes.tolist() == [7] and held_out.images[0, :, 31, 31].tolist() == [10, 20, 30]
    assert train.images[1, 2, 0, :4].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"test_batch.bin": 3073}, "has no data_batch_1.bin"),
        ({"test_batch.bin": 3073, "data_batch_1.bin": 3000}, r"or truncated \(bytes: 3,000, each image: 3,073\)"),
        ({"other": 5}, r"has neither test_batch.bin nor a folder of pictures for each class \(folders: 0\)"),
    ],
)
def test_what_is_no_set_of_images_is_refused(files, message, tmp_path):
    for name, size in files.items():
        (tmp_path / name).write_bytes(bytes(size))
    with pytest.raises(UsageError, match=message):
        classes_of(tmp_path)
        read_images(tmp_path, 32)


def test_pictures_have_the_class_of_their_folder_and_the_side_that_is_requested(tmp_path):
    if find_spec("PIL") is None:
        absent("no Pillow")
    from PIL import Image

    for place, name in enumerate(("ants", "bees")):
        (tmp_path / name).mkdir()
        for number in range(30):
            Image.new("RGB", (6, 4), (100 * place, number, 0)).save(tmp_path / name / f"{number}.png")
    parts = read_images(tmp_path, 5)
    assert classes_of(tmp_path) == ["ants", "bees"] and sum(map(len, parts)) == 60 and 0 < len(parts[1]) < 20
    for part in parts:
        assert part.images.shape[1:] == (3, 5, 5)
        assert (part.images[:, 0, 2, 2] == 100 * part.classes).all()
    (tmp_path / "bees" / "3.png").write_bytes(b"no picture")
    with pytest.raises(UsageError, match="cannot read the picture"):
        read_images(tmp_path, 7)
