"""A source that all tests may read and none may change."""

from __future__ import annotations

import pytest
from tests.cache.support import make_images, make_masks


@pytest.fixture(scope="session")
def images(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp("source") / "images", 60)


@pytest.fixture(scope="session")
def masks(images, tmp_path_factory):
    return make_masks(tmp_path_factory.mktemp("source") / "masks", images)
