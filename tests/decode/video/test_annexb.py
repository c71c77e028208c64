"""Units behind start codes, against FFmpeg's own filters."""

from __future__ import annotations

import av
import pytest
from tests.decode.video.support import make

from fulltilt.decode.video.annexb import behind_start_codes, hevc_sets, length_bytes
from fulltilt.decode.video.entry import parameter_sets


def units(data):
    """What is between start codes of three or four bytes."""
    return [unit.rstrip(b"\x00") for unit in data.split(b"\x00\x00\x01")[1:]]


@pytest.mark.parametrize("codec", ["h264", "hevc", "h264 open gop"])
def test_the_units_that_the_filters_give(tmp_path, codec):
    """They put the header before each key frame; here it is asked for once, and stands before the first."""
    path, name = make(tmp_path / "v", codec, count=20), codec[:4]
    with av.open(str(path)) as file:
        stream = file.streams.video[0]
        extradata = stream.codec_context.extradata
        convert = av.BitStreamFilterContext(f"{name}_mp4toannexb", stream)
        head = hevc_sets(extradata) if name == "hevc" else parameter_sets(name, extradata)
        width = length_bytes(name, extradata)
        assert width == 4
        assert head
        packets = [packet for packet in file.demux(stream) if packet.size]
        assert len(packets) == 20
        header = units(head)
        for place, packet in enumerate(packets):
            ours = units(behind_start_codes(bytes(packet), width))
            theirs = [unit for part in convert.filter(packet) for unit in units(bytes(part))]
            if place == 0:
                assert all(unit in theirs for unit in header if unit[0] & 0x7E != 78), "the filter drops messages"
            assert [unit for unit in theirs if unit not in header] == [unit for unit in ours if unit not in header]


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_lengths_of_any_width(width):
    packet = b"".join(len(unit).to_bytes(width) + unit for unit in (b"ab", b"", b"c"))
    assert behind_start_codes(packet, width) == b"\x00\x00\x00\x01ab\x00\x00\x00\x01c"


def test_start_codes_stay(tmp_path):
    path = make(tmp_path / "v", "mpeg-ts", count=20)
    with av.open(str(path)) as file:
        stream = file.streams.video[0]
        packet = next(file.demux(stream))
        assert length_bytes("h264", stream.codec_context.extradata) == 0
        assert behind_start_codes(bytes(packet), 0) == bytes(packet)
    assert length_bytes("h264", None) == length_bytes("hevc", b"\x01") == length_bytes("vp9", b"\x01" * 40) == 0
    assert hevc_sets(None) == b""


@pytest.mark.parametrize("packet", [b"\x00\x00\x00\x09ab", b"\x00\x00\x00\x02ab\x00"])
def test_lengths_that_do_not_add_up(packet):
    with pytest.raises(ValueError, match="behind its packet of"):
        behind_start_codes(packet, 4)
