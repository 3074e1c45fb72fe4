"""Files are replaced as a whole, with the user's umask and in UTF-8."""

import os
import stat

import pytest

from mpicoll.base.files import replacing, write_atomically


@pytest.fixture
def umask():
    before = os.umask(0o022)
    yield os.umask
    os.umask(before)


@pytest.mark.parametrize("mask", [0o022, 0o027, 0o077, 0o002])
def test_the_umask_holds(tmp_path, umask, mask):
    umask(mask)
    for _ in range(2):
        write_atomically(tmp_path / "a.html", "\u00b5s")
    assert stat.S_IMODE((tmp_path / "a.html").stat().st_mode) == 0o666 & ~mask
    assert (tmp_path / "a.html").read_bytes() == b"\xc2\xb5s"
    assert os.listdir(tmp_path) == ["a.html"]


def test_what_fails_leaves_the_old_file(tmp_path):
    path = tmp_path / "a.svg"
    path.write_text("old")
    with pytest.raises(KeyError), replacing(path) as draft:  # noqa: PT012
        assert draft.suffix == ".svg" and draft.parent == tmp_path
        draft.write_text("half")
        raise KeyError
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.svg"]
    with pytest.raises(FileNotFoundError):
        write_atomically(tmp_path / "none" / "a", "")


def test_a_link_stays_one_and_a_device_too(tmp_path):
    (tmp_path / "link").symlink_to("real")
    write_atomically(tmp_path / "link", "x")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real").read_text() == "x"
    write_atomically("/dev/null", "x")
    assert not os.path.isfile("/dev/null")
