"""Files that are written as a whole: a reader never sees a part, and permissions and links stay."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from blocknb.runtime import whole_files


def test_a_missing_folder_is_an_error_with_the_path_of_the_user(tmp_path: Path) -> None:
    path = tmp_path / "nowhere" / "card.html"
    with pytest.raises(FileNotFoundError) as caught:
        whole_files.write_text(path, "text")
    assert caught.value.filename == str(path)


def test_an_error_while_writing_leaves_the_former_file_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "found.json"
    whole_files.write_text(path, "old\r\n")

    def full(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="no space"):
        whole_files.write_text(path, "new")
    assert path.read_bytes() == b"old\r\n" and [p.name for p in tmp_path.iterdir()] == ["found.json"]


def test_permissions_and_symbolic_links_stay(tmp_path: Path) -> None:
    path, link = tmp_path / "found.json", tmp_path / "link.json"
    path.write_text("old")
    path.chmod(0o640)
    link.symlink_to(path.name)
    whole_files.write_text(link, "new")
    assert link.is_symlink() and path.read_text() == "new" and path.stat().st_mode & 0o777 == 0o640


def test_what_is_no_file_is_written_directly(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        whole_files.write_text(pipe, "text")
        assert os.read(reader, 10) == b"text"
    finally:
        os.close(reader)
    whole_files.write_text(os.devnull, "text")
    assert Path(os.devnull).is_char_device()
