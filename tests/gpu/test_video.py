"""Frames from the GPU's video engines against the CPU's path, on a real GPU.

Stated tolerance, of 255: in a video's own size every sample within 3; scaled, 2 on average, and 99.9 % within 6 on
smooth pictures (the two scale alike, swscale's tables are coarser).
"""

from __future__ import annotations

import functools
import os
import threading
import time

import numpy as np
import pytest
import torch
from tests.decode.video.support import make
from tests.gpu import needs

from fulltilt.augment import GPUAugmentation
from fulltilt.decode.video import open_video
from fulltilt.decode.video.device import DeviceVideo
from fulltilt.decode.video.limits import NUMBERS, limits_of
from fulltilt.decode.video.nvdec import Engine, library
from fulltilt.decode.video.sessions import Sessions
from fulltilt.errors import DecodeError, UnavailableError
from fulltilt.feed import VideoClips, feed

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning"),
]
SIZE = (320, 256)
CODECS = {"h264": "H264", "h264 open gop": "H264", "hevc": "HEVC", "vp9": "VP9", "av1": "AV1", "mpeg-ts": "H264"}
"""The library's names."""


@pytest.fixture(autouse=True, scope="module")
def engines():
    needs.library("av")
    try:
        library()
    except UnavailableError as error:
        needs.do_without(str(error))


@functools.cache
def card(codec):
    """What the card says of a codec with 8 bits in 4:2:0, by the library's own query and not by ours."""
    given = library()
    return given.GetDecoderCaps(
        gpuid=0,
        codec=getattr(given.cudaVideoCodec, codec),
        chromaformat=getattr(given.cudaVideoChromaFormat, "420"),
        bitdepth=8,
    )


def by_whom(codec, decision):
    """NVDEC where the card decodes such a video; otherwise the CPU, with this reason."""
    if card(CODECS[codec])["supported"]:
        assert decision.value == "nvdec", decision.reason
    else:
        assert decision.value == "cpu"
        assert decision.reason.endswith(f": this GPU's video engines don't decode {CODECS[codec]}")


def close(ours, theirs, *, scaled=False, by="nvdec"):
    apart = np.abs(ours.cpu().numpy().astype(int) - theirs.astype(int))
    if by == "cpu":
        assert apart.max() == 0
    elif scaled:
        assert apart.mean() <= 2.5
    else:
        assert apart.max() <= 3


@pytest.mark.parametrize("gop", [1, 12, 250], ids=["all key frames", "short", "long"])
@pytest.mark.parametrize("codec", CODECS)
def test_the_same_frames_as_on_the_cpu(tmp_path, codec, gop):
    path = make(tmp_path / "v", codec, size=SIZE, gop=gop)
    draw = np.random.default_rng(0)
    with open_video(path) as here, open_video(path, device="cuda:0") as there:
        by_whom(codec, there.decision)
        close(there.frames(range(40)), here.frames(range(40)), by=there.decision.value)
        for wanted in ([39], [0], [1, 2], [3], [20, 5, 5, 38], *draw.integers(0, 40, (10, 4)).tolist()):
            ours = there.frames(wanted)
            assert ours.shape == (len(wanted), SIZE[1], SIZE[0], 3)
            assert ours.dtype == torch.uint8
            assert ours.device == torch.device("cuda", 0)
            close(ours, here.frames(wanted), by=there.decision.value)
        by_whom(codec, there.decision)


@pytest.mark.parametrize("size", [(112, 150), (128, 161), (512, 640)])
def test_scaled(tmp_path, size):
    path = make(tmp_path / "v", size=SIZE)
    with open_video(path) as here, open_video(path, device="cuda:0") as there:
        close(there.frames([3, 17], size=size), here.frames([3, 17], size=size), scaled=True)


@pytest.mark.parametrize("turn", [90, 180, 270])
def test_upright(tmp_path, turn):
    path = make(tmp_path / "v", size=SIZE, rotation=turn)
    with open_video(path) as here, open_video(path, device="cuda:0") as there:
        assert (there.height, there.width) == (here.height, here.width)
        close(there.frames([5]), here.frames([5]))


@pytest.mark.parametrize(
    ("codec", "options"), [("mpeg4", {}), ("h264", {"pixels": "yuv420p10le"}), ("h264", {"pixels": "yuv444p"})]
)
def test_what_the_engines_are_not_given_comes_from_the_cpu(tmp_path, codec, options):
    path = make(tmp_path / "v", codec, size=SIZE, **options)
    with open_video(path) as here, open_video(path, device="cuda:0") as there:
        assert there.decision.value == "cpu"
        assert there.decision.reason
        ours = there.frames([7, 3])
        assert ours.is_cuda
        assert np.array_equal(ours.cpu().numpy(), here.frames([7, 3]))


@pytest.mark.parametrize("codec", NUMBERS)
def test_the_limits_are_those_of_the_card(codec):
    given, ours = card(codec), limits_of(0, codec)
    assert ours is not None, "the driver answered"
    assert ours.is_supported == bool(given["supported"])
    assert ours.smallest == (given["width_min"], given["height_min"])
    assert ours.largest == (given["width_max"], given["height_max"])
    assert ours.most_blocks == given["mb_num_max"]


def test_no_session_is_made_for_what_is_too_small(tmp_path, monkeypatch):
    """Sixteen pixels are less than any card decodes of HEVC."""
    path = make(tmp_path / "v", "hevc", size=(16, 16), count=4)
    smallest = card("HEVC")["width_min"]
    assert smallest > 16
    monkeypatch.setattr(Engine, "_make", lambda _: pytest.fail("a session was made"))
    with open_video(path) as here, open_video(path, device="cuda:0") as there:
        assert there.decision.value == "cpu"
        assert f"decode HEVC from {smallest}×" in there.decision.reason
        assert np.array_equal(there.frames([2]).cpu().numpy(), here.frames([2]))


def test_on_another_stream_while_the_device_is_busy(tmp_path):
    """Pixels are there for the stream that asked, however late the decoder's own is."""
    path = make(tmp_path / "v", size=SIZE)
    with open_video(path) as here, open_video(path, device="cuda:0") as there:
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            torch.cuda._sleep(50_000_000)
            given = [there.frames([number, number + 1]).clone() for number in range(0, 30, 3)]
        side.synchronize()
        for number, ours in zip(range(0, 30, 3), given, strict=True):
            close(ours, here.frames([number, number + 1]))


def test_decoders_side_by_side(tmp_path):
    path = make(tmp_path / "v", size=SIZE)
    with open_video(path) as here:
        expected = here.frames(range(40))
    problems = []

    def work(seed):
        draw = np.random.default_rng(seed)
        try:
            with open_video(path, device="cuda:0") as video:
                for _ in range(20):
                    wanted = draw.integers(0, 40, 6)
                    close(video.frames(wanted), expected[wanted])
        except BaseException as error:  # told by the test
            problems.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems


@pytest.mark.alone
def test_memory_stays_flat(tmp_path):
    path = make(tmp_path / "v", size=SIZE)
    used = []
    for turn in range(60):
        with open_video(path, device="cuda:0") as video:
            video.frames([turn % 40])
        if turn in (19, 59):
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            used.append(torch.cuda.mem_get_info()[0])
    assert used[0] - used[1] < 64 << 20


@pytest.mark.parametrize("codec", CODECS)
def test_nothing_beyond_the_last_frame_is_decoded(tmp_path, codec):
    """The engine is emptied behind the frames that are wanted, and takes the next from a key frame on."""
    path = make(tmp_path / "v", codec, size=SIZE, gop=12)
    draw = np.random.default_rng(1)
    with open_video(path) as here, open_video(path, device="cuda:0") as there:
        by_whom(codec, there.decision)
        for _ in range(30):
            start, length = int(draw.integers(0, 36)), int(draw.integers(1, 5))
            wanted = [int(number) for number in np.minimum(start + np.arange(length) * 2, 39)]
            before = there.decoded
            close(there.frames(wanted, stay=bool(draw.integers(0, 2))), here.frames(wanted))
            assert there.decoded - before <= 12 + 2 * length + 12
        before = there.decoded
        there.frames([13], stay=False)
        assert there.decoded - before <= 4, "a frame beside a key frame"
        by_whom(codec, there.decision)


@pytest.mark.parametrize("codec", ["h264", "hevc", "av1"])
def test_a_session_goes_on_with_another_video(tmp_path, codec):
    paths = [make(tmp_path / f"v{number}", codec, size=SIZE, count=20 + number) for number in range(5)]
    sessions, draw, known = Sessions(2), np.random.default_rng(0), {}
    for turn in range(40):
        path = paths[int(draw.integers(5))]
        with (
            open_video(path, known=known.get(path)) as here,
            DeviceVideo(path, device=torch.device("cuda", 0), known=known.get(path), sessions=sessions) as there,
        ):
            known[path] = here.known
            by_whom(codec, there.decision)
            wanted = draw.integers(0, len(here), 4).tolist()
            close(there.frames(wanted, stay=bool(turn % 2)), here.frames(wanted))
            by_whom(codec, there.decision)
    if card(CODECS[codec])["supported"]:
        assert sessions.used_again >= 25, "of forty openings"
    else:
        assert (sessions.made, sessions.used_again) == (0, 0), "the card was asked, and no session made"
    assert len(sessions) <= 2


def test_sessions_of_several_sizes_and_codecs_side_by_side(tmp_path):
    kinds = [("h264", SIZE), ("h264", (160, 128)), ("hevc", SIZE), ("h264", (640, 360))]
    paths = [make(tmp_path / f"v{number}", codec, size=size) for number, (codec, size) in enumerate(kinds)]
    sessions = Sessions(4)
    for turn in range(24):
        path = paths[turn * 7 % 4]
        with (
            open_video(path) as here,
            DeviceVideo(path, device=torch.device("cuda", 0), sessions=sessions) as there,
        ):
            assert there.decision.value == "nvdec", there.decision.reason
            close(there.frames([turn, 3]), here.frames([turn, 3]))


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    folder = tmp_path_factory.mktemp("videos")
    return [make(folder / f"v{number}", size=SIZE, count=48, gop=12) for number in range(12)]


class TestClips:
    """Workers and engines together, under one balance."""

    def clips(self, paths, **options):
        given = {"length": 8, "size": (SIZE[1], SIZE[0]), "clips": 2, "labels": range(len(paths))}
        return VideoClips(paths, **(given | options))

    @pytest.mark.parametrize(("share", "kind"), [(0.5, "threads"), (1.0, "threads"), (0.5, "processes")])
    def test_batches_are_those_of_the_cpu(self, paths, share, kind):
        options = {"batch_size": 5, "shuffle": True, "device": "cuda:0"}
        with feed(self.clips(paths), num_workers=2, **options) as it:
            expected = [(images.cpu(), labels.cpu(), it.indices.copy()) for _ in range(2) for images, labels in it]
        with feed(self.clips(paths), num_workers=2, worker_kind=kind, gpu_share=share, **options) as it:
            found = [(images, labels, it.indices.copy()) for _ in range(2) for images, labels in it]
            stats = it.stats()
        assert stats["gpu_share"] == share, "nothing was refused"
        assert stats["gpu_samples"] >= 2 * 24 * share - 1
        for (ours, labels, indices), (theirs, their_labels, their_indices) in zip(found, expected, strict=True):
            assert ours.device == torch.device("cuda", 0)
            assert np.array_equal(indices, their_indices)
            assert torch.equal(labels.cpu(), their_labels)
            close(ours, theirs.numpy())

    def test_scaled_within_the_tolerance(self, paths):
        source = self.clips(paths, size=(112, 112))
        with feed(source, batch_size=6, device="cuda:0", num_workers=2, gpu_share=1.0) as it:
            for images, _ in it:
                theirs = torch.stack([source[0, int(number)][0] for number in it.indices])
                close(images, theirs.numpy(), scaled=True)

    def test_while_the_step_is_busy_on_its_stream(self, paths):
        """What the engines give is not read before it is there, nor overwritten while it is read."""
        source = self.clips(paths)
        with feed(source, batch_size=4, shuffle=True, device="cuda:0", num_workers=2, gpu_share=0.75) as it:
            given = []
            for _ in range(2):
                for images, _ in it:
                    torch.cuda._sleep(20_000_000)
                    given.append((images.clone(), it.indices.copy(), len(given) >= 6))
            torch.cuda.synchronize()
        for images, indices, second in given:
            theirs = torch.stack([source[int(second), int(number)][0] for number in indices])
            close(images, theirs.numpy())

    def test_one_draw_per_clip_whoever_decodes_it(self, paths):
        augment = GPUAugmentation(1.0, 0, 0, 0)  # flips all
        options = {"batch_size": 6, "device": "cuda:0", "num_workers": 1, "augment": augment}
        with feed(self.clips(paths), **options) as it:
            expected = [images.float() for images, _ in it]
        assert expected
        with feed(self.clips(paths), gpu_share=0.5, **options) as it:
            for (images, _), theirs in zip(it, expected, strict=True):
                assert (images.float() - theirs).abs().max() <= 4 / 255

    def test_files_that_the_engines_refuse(self, paths, tmp_path, caplog):
        others = [make(tmp_path / f"o{number}", "mpeg4", size=SIZE, count=48) for number in range(3)]
        source = self.clips([*paths[:3], *others])
        with feed(source, batch_size=4, device="cuda:0", num_workers=1, gpu_share=1.0) as it:
            for epoch in range(2):
                for images, _ in it:
                    theirs = torch.stack([source[epoch, int(number)][0] for number in it.indices])
                    close(images, theirs.numpy())
        said = [record for record in caplog.records if "NVDEC is not used for mpeg4" in record.getMessage()]
        assert len(said) == 1

    def test_damage_is_named(self, paths, tmp_path):
        bad = tmp_path / "bad.mp4"
        bad.write_bytes(b"no video" * 100)
        with (
            feed(self.clips([paths[0], bad]), batch_size=4, device="cuda:0", num_workers=1, gpu_share=1.0) as it,
            pytest.raises(DecodeError, match=r"bad\.mp4"),
        ):
            list(it)

    @pytest.mark.alone
    def test_a_share_is_found(self, paths):
        source = self.clips(paths, quality="fast", size=(112, 112))
        with feed(source, batch_size=8, shuffle=True, device="cuda:0", num_workers=1) as it:
            until = time.monotonic() + 120
            while not it.is_settled:
                assert time.monotonic() < until, it.stats()
                for _ in it:
                    pass
            assert it.share_decision is not None
            assert it.share_decision.evidence["trials"]
            assert it.share_decision.value > 0, it.share_decision.reason  # one worker, and nothing but decoding

    @pytest.mark.alone
    def test_memory_and_sessions_stay_flat(self, paths):
        source, used = self.clips(paths, size=(112, 112)), []
        with feed(source, batch_size=8, shuffle=True, device="cuda:0", num_workers=1, gpu_share=1.0) as it:
            for epoch in range(60):
                for _ in it:
                    pass
                if epoch in (19, 59):
                    torch.cuda.synchronize()
                    used.append((torch.cuda.mem_get_info()[0], len(os.listdir("/proc/self/fd"))))
            assert it._splitter.side._sessions.made <= 40, "of more than a thousand clips"
        (free, handles), (free_later, handles_later) = used
        assert free - free_later < 128 << 20
        assert handles_later <= handles + 8
