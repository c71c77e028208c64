"""The section `data.video`: a folder or CSV of videos as a source."""

from __future__ import annotations

import pytest
import torch
from tests.decode.video.support import make

from fulltilt.errors import InputError
from fulltilt.feed.clips.clips import VideoClips
from fulltilt.train.config.data import make_feeds, set_aside
from fulltilt.train.config.file import dump_config, parse_config

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def videos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("videos")
    rows = ["path,label,start,end"]
    for number in range(4):
        make(folder / f"v{number}", count=24)
        rows += [f"v{number}.mp4,jump,0.2,0.4", f"v{number}.mp4,run,0.5,0.7"]
    (folder / "segments.csv").write_text("\n".join(rows))
    return folder


def config(videos, **data):
    section = {"source": str(videos / "segments.csv"), "size": 16, "batch_size": 2, "num_workers": 0, "video": {}}
    section |= data
    if section["video"] is not None:
        section["video"] = {"length": 6, "temporal": True} | section["video"]
    return parse_config("", [f"data.{key}={_yaml(value)}" for key, value in section.items()])


def _yaml(value):
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_yaml(each)}" for key, each in value.items()) + "}"
    return str(value).lower() if isinstance(value, bool) else "null" if value is None else str(value)


def test_segments_come_as_labels_of_frames(videos):
    found = config(videos, val_source=videos / "segments.csv")
    assert parse_config(dump_config(found)) == found
    training, held_out, _ = make_feeds(found, CPU)
    with training, held_out:
        pixels, labels = next(iter(training))
        assert pixels.shape == (2, 6, 16, 16, 3)
        assert (labels.shape, labels.dtype) == ((2, 6), torch.int64)
        first, again = (torch.cat([labels for _, labels in held_out]) for _ in range(2))
        assert torch.equal(first, again), "validation does not jitter"


def test_validation_has_whole_videos_and_the_classes_of_training(videos):
    found = config(
        videos, val_source=videos / "segments.csv", val_video={"length": 24, "temporal": True, "jitter": False}
    )
    training, held_out, _ = make_feeds(found, CPU)
    with training, held_out:
        whole = torch.cat([labels for _, labels in held_out])
        assert whole.shape == (4, 24)
        assert set(whole.flatten().tolist()) == {0, 1, 2}


def test_a_share_is_of_whole_videos(videos):
    source = VideoClips(videos / "segments.csv", length=6, size=(16, 16), clips=3, temporal=True)
    kept, given = set_aside(source, 0.25, 0)
    assert (len(kept), len(given)) == (9, 3)
    assert not {entry.path for entry in kept.entries} & {entry.path for entry in given.entries}
    assert kept.jitter
    assert not given.jitter
    assert torch.equal(given[0, 0][0], given[1, 0][0])
    training, held_out, _ = make_feeds(config(videos, val_share=0.25, video={"clips": 3}), CPU)
    with training, held_out:
        assert (len(training), len(held_out)) == (5, 2)


def test_parts_of_one_video_stay_on_one_side(tmp_path):
    """Rows of a table: whole videos are set aside, not single rows."""
    rows = [f"v{video}.mp4,{part % 2},{part},{part + 1}" for part in range(5) for video in range(8)]
    (tmp_path / "parts.csv").write_text("\n".join(["path,label,start,end", *rows]))
    source = VideoClips(tmp_path / "parts.csv", length=4, size=(16, 16))
    sides = [{entry.path for entry in side.entries} for side in set_aside(source, 0.25, seed=0)]
    assert [len(side) for side in sides] == [6, 2]
    assert not sides[0] & sides[1]


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({"size": None}, "data.size: missing"),
        ({"video": {"length": 0}}, "data.video.length: found 0"),
        ({"video": {"lenght": 3}}, "did you mean length"),
        ({"masks": "masks"}, "data.masks: is for images"),
        ({"source": "package.module:clips"}, "has to give its own clips"),
        ({"video": None, "val_video": {"length": 4}}, "data.val_video: needs data.video"),
        ({"val_video": {"length": 4}}, "data.val_video: needs data.val_source"),
    ],
)
def test_what_is_wrong_is_named(videos, data, says):
    with pytest.raises(InputError, match=says):
        config(videos, **data)


def test_a_folder_without_videos(tmp_path):
    (tmp_path / "a").mkdir()
    found = config(tmp_path, source=tmp_path / "a", video={"temporal": False})
    with pytest.raises(InputError, match=r"data\.source: no videos"):
        make_feeds(found, CPU)
