"""Whether decoding can really begin at a packet that is flagged as a key frame, and which it can do without. Pure.

Containers and parsers flag more than that. An H.264 stream that is refreshed part by part (intra refresh) flags the
pictures at which a refresh begins, and is right only frames later; a plain I picture promises nothing about the ones
after it, which may still refer to what came before. MPEG-4 in AVI may hold two pictures in a packet and an empty one
after it, so that packets and pictures have different times.
"""

from __future__ import annotations

from collections.abc import Iterator

_IDR, _SEI, _RECOVERY_POINT = 5, 6, 6
_REFERENCE = 0x60
_HEVC_PICTURES, _HEVC_LAST_UNREFERENCED = 32, 14
"""Of HEVC's kinds of units, those below the first are parts of pictures; the even ones up to the second are of pictures
that no other of the same temporal layer refers to."""
_BIDIRECTIONAL = 2
"""Of MPEG-4's kinds of pictures."""
_AV1C = 0x81
"""Marker and version, before a sequence header."""
_PICTURE = b"\x00\x00\x01\xb6"
"""Begins a picture (VOP) of MPEG-4 part 2."""


def h264_entry(packet: bytes, extradata: bytes | None) -> bool:
    """An IDR picture, or a recovery point from which everything that is shown later is exact at once."""
    for unit in _units(packet, extradata):
        kind = unit[0] & 0x1F
        if kind == _IDR:
            return True
        if kind == _SEI and _exact_recovery(unit[1:].replace(b"\x00\x00\x03", b"\x00\x00")):
            return True
    return False


def unneeded(codec: str, packet: bytes, extradata: bytes | None) -> bool:
    """A picture that no other refers to: what shows other pictures can be decoded without it. False where in doubt."""
    if codec == "h264":
        slices = [unit[0] for unit in _units(packet, extradata) if 1 <= unit[0] & 0x1F <= _IDR]
        return bool(slices) and not any(head & _REFERENCE for head in slices)
    if codec == "hevc":
        return _hevc_unneeded(packet, extradata)
    if codec == "mpeg4":
        at = packet.find(_PICTURE)
        return 0 <= at < len(packet) - 4 and packet[at + 4] >> 6 == _BIDIRECTIONAL and not packed(packet)
    return False


def _hevc_unneeded(packet: bytes, extradata: bytes | None) -> bool:
    """Only in a stream of one temporal layer, as its header says: a higher one may refer to what its own does not."""
    if not extradata or len(extradata) < 23 or extradata[0] != 1 or extradata[21] >> 3 & 7 != 1:
        return False
    kinds = [unit[0] >> 1 & 0x3F for unit in _behind_lengths(packet, (extradata[21] & 3) + 1)]
    pictures = [kind for kind in kinds if kind < _HEVC_PICTURES]
    return bool(pictures) and all(kind <= _HEVC_LAST_UNREFERENCED and kind % 2 == 0 for kind in pictures)


def packed(packet: bytes) -> bool:
    """Two pictures of MPEG-4 part 2 in one packet."""
    return packet.count(_PICTURE) > 1


def _units(packet: bytes, extradata: bytes | None) -> Iterator[bytes]:
    """NAL units, behind their lengths (mp4, mkv) or behind start codes (transport and raw streams)."""
    if extradata and len(extradata) > 4 and extradata[0] == 1:
        yield from _behind_lengths(packet, (extradata[4] & 3) + 1)
        return
    yield from (unit for unit in packet.split(b"\x00\x00\x01")[1:] if unit)


def _behind_lengths(packet: bytes, width: int) -> Iterator[bytes]:
    at = 0
    while at + width < len(packet):
        length = int.from_bytes(packet[at : at + width])
        if length:
            yield packet[at + width : at + width + length]
        at += width + length


def _exact_recovery(messages: bytes) -> bool:
    """A recovery point message: no frame to wait for, and an exact match."""
    at = 0
    while at + 2 <= len(messages) and messages[at] != 0x80:
        kind, at = _number(messages, at)
        size, at = _number(messages, at)
        if kind == _RECOVERY_POINT and at < len(messages):
            return messages[at] & 0xC0 == 0xC0  # 1: an Exp-Golomb zero, wait for none; 1: exact
        at += size
    return False


def _number(data: bytes, at: int) -> tuple[int, int]:
    """A value in steps of 255, and where the next one begins."""
    value = 0
    while at < len(data) and data[at] == 0xFF:
        value, at = value + 255, at + 1
    return (value + data[at], at + 1) if at < len(data) else (value, at)


def parameter_sets(codec: str, extradata: bytes | None) -> bytes:
    """What an H.264 or AV1 stream in mp4 or mkv may keep apart from its packets, as it stands in a stream itself."""
    if not extradata or len(extradata) < 5:
        return b""
    if codec in ("av1", "libdav1d"):
        return extradata[4:] if extradata[0] == _AV1C else b""
    return _avc_sets(extradata) if codec == "h264" and extradata[0] == 1 else b""


def _avc_sets(extradata: bytes) -> bytes:
    """Of an avcC box, behind start codes."""
    found, at = [], 5
    for mask in (0x1F, 0xFF):  # sequence sets, then picture sets
        if at >= len(extradata):
            break
        count, at = extradata[at] & mask, at + 1
        for _ in range(count):
            length = int.from_bytes(extradata[at : at + 2])
            found.append(b"\x00\x00\x00\x01" + extradata[at + 2 : at + 2 + length])
            at += 2 + length
    return b"".join(found)
