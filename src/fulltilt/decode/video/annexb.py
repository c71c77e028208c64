"""Packets of H.264 and HEVC behind start codes, as the GPU's decoder takes them. Pure.

In mp4 and mkv a packet's units stand behind their lengths, and the header apart from all packets. FFmpeg has a filter
for it, but PyAV's lets go of the interpreter lock seven times for a packet: where a dozen threads want it, each time
costs more than all of this.
"""

from __future__ import annotations

_START = b"\x00\x00\x00\x01"
_BOX = 1
"""The first byte of a header that stands apart (avcC, hvcC); others stand in the stream, behind start codes."""
_AVC_WIDTH, _HEVC_WIDTH = 4, 21
"""Where it says how many bytes a length has."""
_HEVC_SETS = 22


def length_bytes(codec: str, extradata: bytes | None) -> int:
    """Of a unit's length; 0 where units stand behind start codes already."""
    at = {"h264": _AVC_WIDTH, "hevc": _HEVC_WIDTH}.get(codec)
    if at is None or not extradata or len(extradata) <= at or extradata[0] != _BOX:
        return 0
    return (extradata[at] & 3) + 1


def behind_start_codes(packet: bytes, width: int) -> bytes:
    """With start codes in the place of lengths; ValueError where these don't add up."""
    if not width:
        return packet
    parts: list[bytes] = []
    at, end = 0, len(packet)
    while at < end:
        begin = at + width
        at = begin + int.from_bytes(packet[at:begin])
        if at > end or begin > end:
            raise ValueError(f"a unit ends {at - end} bytes behind its packet of {end}")
        if at > begin:
            parts += (_START, packet[begin:at])
    return b"".join(parts)


def hevc_sets(extradata: bytes | None) -> bytes:
    """What a stream in mp4 or mkv keeps apart from its packets (hvcC), behind start codes."""
    if not length_bytes("hevc", extradata) or not extradata or len(extradata) <= _HEVC_SETS:
        return b""
    parts: list[bytes] = []
    at = _HEVC_SETS + 1
    for _ in range(extradata[_HEVC_SETS]):
        count, at = int.from_bytes(extradata[at + 1 : at + 3]), at + 3
        for _ in range(count):
            end = at + 2 + int.from_bytes(extradata[at : at + 2])
            parts += (_START, extradata[at + 2 : end])
            at = end
    return b"".join(parts)
