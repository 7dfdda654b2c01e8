"""The page of a swarm in a browser without a screen: Debian's chromium, where it is installed."""

import shutil
import subprocess
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from apps.common.status_page.course import HEIGHT, ROW, WIDTH
from apps.common.status_page.web import Web
from apps.swarm.status.table import SWARM
from pipelined.swarm.protocol.status import LeaderReport
from tests.unit.pipelined.swarm.status.samples import STAGE, peer, peer_reply, status

CHROMIUM = shutil.which("chromium")
FLAGS = "--headless --no-sandbox --disable-gpu --hide-scrollbars --window-size=1300,900 --virtual-time-budget=500"
SUMMING = (0xD0, 0x70, 0x40)
LEADING = LeaderReport(left=0, unscored=0, phase="summing", attempt=1, last_failure="")


@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium (apt-get install chromium)")
def test_a_browser_shows_the_curves_and_the_timeline_of_the_last_steps(tmp_path):
    picture = tmp_path / "page.png"
    with Web(0, SWARM) as web:
        for step in (1, 2, 3):
            done = peer_reply(replace(STAGE, forwards=10 * step))
            web.last = status(step=step, loss=4.0 - step, peers=[peer("first", reply=done)], leading=LEADING)
        command = [CHROMIUM, *FLAGS.split(), f"--user-data-dir={tmp_path}", "--dump-dom", f"--screenshot={picture}"]
        shown = subprocess.run([*command, web.address], capture_output=True, text=True, check=True).stdout
    for words in ("loss</figcaption>", "tokens/s</figcaption>", "the last steps</figcaption>", ">first</text>"):
        assert words in shown
    pixels = np.asarray(Image.open(picture).convert("RGB")).astype(int)
    blue = (pixels[:, :, 2] > 150) & (pixels[:, :, 0] < 100)
    columns = np.flatnonzero(blue.any(axis=0))
    first, last = (blue[:, column].argmax() for column in (columns[5], columns[-5]))  # the top one is the loss
    assert len(columns) == pytest.approx(WIDTH, abs=4) and last - first == pytest.approx(HEIGHT, abs=4)
    summing = (pixels == SUMMING).all(axis=2)
    assert summing.sum() == pytest.approx(WIDTH * (ROW - 2), rel=0.02)
