"""Files left to the GPU, with a stand-in that decodes on the CPU: content, order, masks, and what it refuses."""

import threading
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import simplejpeg
import torch
from PIL import Image
from tests.decode.support import exif, picture, saved
from tests.waiting import until

from fulltilt.decode import decode
from fulltilt.decode.gpu import GpuDecoder
from fulltilt.errors import SampleError, UnavailableError
from fulltilt.feed import ImageFiles, feed
from fulltilt.feed.balance import Balance
from fulltilt.feed.images import file_feed
from fulltilt.feed.images.gpu_side import GpuSide
from fulltilt.feed.images.kept import Mode
from fulltilt.feed.share import ShareTuner
from fulltilt.feed.tuner import Tuner


class StandIn:
    """Decodes as the CPU does; refuses batches with one of some files, or all."""

    refuse = ()
    breaks = False

    def __init__(self):
        self.files = 0

    def decode(self, memory, starts, lengths, sizes):
        made = []
        for start, length, size in zip(starts, lengths, sizes, strict=True):
            data = memory[start : start + length].numpy().tobytes()
            if self.breaks or data in self.refuse:
                raise RuntimeError("nvjpegDecodeBatched: bad JPEG")
            pixels = simplejpeg.decode_jpeg(data)
            assert pixels.shape == (*size, 3)
            self.files += 1
            made.append(torch.from_numpy(pixels).reshape(-1))
        return torch.cat(made)


@pytest.fixture
def backend(monkeypatch):
    backend = StandIn()
    monkeypatch.setattr(
        file_feed, "GpuDecoder", lambda device, channels: GpuDecoder(device, channels=channels, backend=backend)
    )
    return backend


@pytest.fixture
def folder(tmp_path):
    """Plain, turned, progressive and PNG files, of many sizes."""
    kinds = [
        lambda k: saved(picture(30 + k, 50 - k, k)),
        lambda k: saved(picture(40 + k, 30, k), exif=exif(6)),
        lambda k: saved(picture(30 + k, 50 - k, k), progressive=True),
        lambda k: saved(picture(30, 20 + k, k), "PNG"),
    ]
    for k in range(20):
        suffix = "png" if k % 4 == 3 else "jpg"
        (tmp_path / f"{k:02d}.{suffix}").write_bytes(kinds[k % 4](k))
    return tmp_path


def batches(source, share, **more):
    with file_feed_with(source, share, **more) as it:
        return [batch for _ in range(2) for batch in it]


def file_feed_with(source, share, **more):
    it = feed(source, **({"batch_size": 8, "size": 24, "device": "cpu", "num_workers": 2, "shuffle": True} | more))
    if share:
        it._set_share(share)
    return it


@pytest.mark.parametrize("share", [0.3, 1.0])
def test_batches_are_those_of_the_cpu_alone(folder, backend, share):
    source = ImageFiles(folder, labels=np.arange(20))
    expected, found = batches(source, 0.0), batches(source, share)
    assert backend.files >= (10 if share == 1 else 3)
    for ours, theirs in zip(found, expected, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_masks_come_along(folder, backend, tmp_path_factory):
    masks = tmp_path_factory.mktemp("masks")
    paths = sorted(folder.iterdir())
    for k, path in enumerate(paths):
        height, width, _ = decode(path.read_bytes()).shape
        labels = np.random.default_rng(k).integers(0, 5, (height, width), np.uint8)
        Image.fromarray(labels).save(masks / f"{path.stem}.png")
    source = ImageFiles(paths, masks=sorted(masks.iterdir()))
    for ours, theirs in zip(batches(source, 0.6), batches(source, 0.0), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    assert backend.files


@pytest.mark.parametrize("mode", [Mode.DECODED, Mode.ENCODED])
def test_samples_whose_pixels_are_kept_are_not_sent_to_the_gpu(folder, backend, mode):
    time.sleep(0.06)  # what has just been written may be changed in the same tick, and is not kept
    source = ImageFiles(folder)
    with file_feed_with(source, 0.0) as plain:
        expected = [batch for _ in range(4) for batch in plain]
    with file_feed_with(source, 0.0, cache="auto", cache_folder=folder / "none") as it:
        it._auto.kept.begin(mode, budget_bytes=1 << 30)
        found = [batch for _ in range(2) for batch in it]
        assert it.stats()["kept_samples"] == len(source)
        it._set_share(1.0)
        found += [batch for _ in range(2) for batch in it]
        it.set_epoch(5)
        reads = it._reader.pool.counts.read_samples
        list(it)
        assert it._reader.pool.counts.read_samples == reads, "nor are their files read"
    assert (backend.files == 0) == (mode is Mode.DECODED)
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.equal(ours[0], theirs[0])


def test_what_the_gpu_refuses_the_cpu_decodes(folder, backend):
    source = ImageFiles(folder)
    expected = batches(source, 0.0)
    assert expected
    backend.refuse = [(folder / "00.jpg").read_bytes(), (folder / "05.jpg").read_bytes()]
    for ours, theirs in zip(batches(source, 1.0), expected, strict=True):
        assert torch.equal(ours[0], theirs[0])


def test_a_gpu_that_decodes_nothing_is_left_alone(folder, backend, caplog):
    source = ImageFiles(folder)
    expected = batches(source, 0.0)
    backend.breaks = True
    with file_feed_with(source, 0.5) as it:
        found = [batch for _ in range(2) for batch in it]
        assert it.stats()["gpu_share"] == 0
    assert "the CPU decodes all from now on" in caplog.text
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.equal(ours[0], theirs[0])


def test_a_damaged_file_is_named_by_whoever_decodes_it(folder, backend):
    damaged = bytearray(saved(picture(60, 40)))
    damaged[len(damaged) // 3 : len(damaged) // 3 + 200] = b"\xff\xd8" * 100
    (folder / "00.jpg").write_bytes(damaged)
    backend.refuse = [bytes(damaged)]
    with pytest.raises(SampleError, match=r"00\.jpg"):
        batches(ImageFiles(folder), 1.0, shuffle=False)
    with file_feed_with(ImageFiles(folder), 1.0, on_error="skip") as it:
        assert sum(len(images) for (images,) in it) == 19
        assert "00.jpg" in it.skipped[0]


def test_breaking_off_and_closing_with_work_under_way(folder, backend):
    with file_feed_with(ImageFiles(folder), 1.0, batch_size=2) as it:
        for _ in range(3):
            next(iter(it))
    assert not it._side._thread.is_alive()


def test_no_decoder_on_this_device_means_no_share(folder, monkeypatch, caplog):
    def none(device, channels):
        raise UnavailableError("no JPEG decoding here")

    monkeypatch.setattr(file_feed, "GpuDecoder", none)
    caplog.set_level("INFO", "fulltilt.feed")
    with file_feed_with(ImageFiles(Path(folder)), 0.5) as it:
        assert len(list(it)) == 3
        assert it.stats()["gpu_share"] == 0
    assert "no JPEG decoding here" in caplog.text


def test_numbers_of_decoders_that_are_tried_don_t_move_the_share(folder, monkeypatch):
    with file_feed_with(ImageFiles(folder), 0.0, num_workers="auto") as it:
        it._balance = Balance(workers=8, tuner=partial(Tuner, most=8), share=ShareTuner(), most_workers=8)
        monkeypatch.setattr(it._reader.pool, "resize", lambda workers: None)
        measured = iter([(1000.0, 0.0)] * 2 + [(500.0, 0.5)] * 20)
        monkeypatch.setattr(it._window, "add", lambda samples, waited: next(measured))
        shares, numbers = set(), set()
        while not it.is_settled:
            it._tune(8, 0.0)
            shares.add(it._balance.share)
            numbers.add(it._balance.workers)
        assert shares == {0.0}
        assert len(numbers) > 1
        assert it.decision.value == 8


def test_a_change_of_load_moves_decoding_to_the_gpu_and_is_told(folder, backend, monkeypatch, caplog):
    caplog.set_level("INFO", "fulltilt.feed")
    with file_feed_with(ImageFiles(folder), 0.0, num_workers=2) as it:
        it._balance = Balance(workers=2, tuner=None, share=ShareTuner(), most_workers=2)
        measured = iter([(1000.0, 0.0)] * 3 + [(600.0, 0.4)] * 2 + [(800.0, 0.0)] * 20)
        monkeypatch.setattr(it._window, "add", lambda samples, waited: next(measured))
        for _ in range(3):
            it._tune(8, 0.0)
        assert it.is_settled
        assert it.stats()["balance"] == "settled"
        it._tune(8, 0.0)  # waits for 40 % more of its time: no second look is needed
        assert it.stats()["gpu_share"] == it.stats()["balance_reopened"] * 0.40625
        assert (it.stats()["balance"], it.stats()["balance_changes"]) == ("share", 1)
        assert "looking for another balance: 600/s waiting 40%, it was 1,000/s" in caplog.text
        while not it.is_settled:
            it._tune(8, 0.0)
        assert "decoded by the GPU: trains fastest" in caplog.text
        assert sum(len(images) for (images,) in it) == 20, "batches come all the while"


def test_slots_that_come_back_after_the_decoders_have_ended_are_not_filled(folder, backend):
    reached, goes_on = threading.Event(), threading.Event()
    decode_now = backend.decode

    def late(*arguments):
        reached.set()
        goes_on.wait(10)
        return decode_now(*arguments)

    backend.decode = late
    it = file_feed_with(ImageFiles(folder), 1.0)
    reader = it._reader
    reader.start(it.order.epoch(0))
    assert reached.wait(10)
    reader.start(it.order.epoch(1))  # what the GPU is at is dropped, and its slot wanted for this epoch
    closing = threading.Thread(target=it.close)
    closing.start()
    reader.pool._thread.join(10)
    time.sleep(0.1)
    goes_on.set()
    closing.join(10)
    assert not closing.is_alive()
    assert reader._error is None


def test_what_is_queued_when_the_side_is_closed_is_dropped(folder, backend):
    reached, goes_on = threading.Event(), threading.Event()
    decode_now, begun = backend.decode, []

    def late(*arguments):
        begun.append(arguments)
        reached.set()
        goes_on.wait(10)
        return decode_now(*arguments)

    backend.decode = late
    with file_feed_with(ImageFiles(folder), 1.0, batch_size=4, shuffle=False) as it:
        side = it._side
        it._reader.start(it.order.epoch(0))
        assert reached.wait(10)
        until(lambda: side._queue.qsize() >= 2)
        closing = threading.Thread(target=side.close)
        closing.start()
        until(lambda: side._closing)
        goes_on.set()
        closing.join(10)
        assert not side._thread.is_alive()
        assert len(begun) == 1, "the one that was under way"


def test_memory_is_read_no_more_once_the_side_is_closed():
    class Stream:
        waited = False

        def synchronize(self):
            self.waited = True

    decoder = GpuDecoder("cpu", backend=StandIn())
    decoder.stream = Stream()
    GpuSide(decoder, done=print, broken=print).close()
    assert decoder.stream.waited
