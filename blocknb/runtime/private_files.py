"""Files that only this user can change: `read(root, name, limit)`, `write(root, name, data)`, `remove(root, name)`.

The cache holds machine code, which a launch runs. Whoever can write the cache can run code as this user. A folder is therefore trusted
only if this user or root owns it, and if neither its group nor others may write to it. The same holds for each file. The caller may
name further trusted owners (`owners`, user ids).

Every check looks at an open descriptor, and all later steps use this descriptor. So another process gains nothing if it exchanges the path
after the check (a TOCTOU race, CWE-367). Folders below the root and files are opened without following symbolic links, and files without
waiting for the other end of a FIFO. The root itself may be a symbolic link of this user: many users keep `~/.cache` on another disk.

`name` is a path of at most one folder and a file: "ab/cd.bnb". Windows has no owners and modes of this kind, so all folders are trusted.
"""

from __future__ import annotations

import contextlib
import os
import stat
import warnings
from collections.abc import Collection, Iterator

#: A read returns at most this many bytes at once.
_PIECE = 1 << 24
_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)
_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)
_FILE = (
    os.O_RDONLY | _NO_FOLLOW | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
)
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_FOLLOW | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_AT = os.open in os.supports_dir_fd and os.rename in os.supports_dir_fd
#: Folders for which this process has warned.
_warned: set[str] = set()


class UntrustedFolder(OSError):
    """A folder that another user owns or may write to. `fix`: the command that makes it private, if the user owns it."""

    def __init__(self, message: str, fix: str = ""):
        super().__init__(message)
        self.fix = fix


class UntrustedFile(Exception):
    """A file that is no private regular file of a size within the limit. `foreign`: another user owns it or may write to it."""

    def __init__(self, message: str, foreign: bool = False):
        super().__init__(message)
        self.foreign = foreign


def warn_once(root: str, message: str, stacklevel: int = 2) -> None:
    """Warns that the folder `root` is not used; once per process and folder."""
    if root not in _warned:
        _warned.add(root)
        warnings.warn(message, RuntimeWarning, stacklevel=stacklevel + 1)


def read(root: str, name: str, limit: int, owners: Collection[int] = (), touch: bool = True) -> bytes | None:
    """The content of a file, or None if there is none. With `touch`, the read sets its time of last use.

    Raises UntrustedFolder, UntrustedFile, and OSError for other failures, such as a missing permission.
    """
    try:
        with _opened(root, name, owners=owners) as (folder, last):
            return _content(folder, last, limit, owners, touch)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _content(folder: int | str, last: str, limit: int, owners: Collection[int], touch: bool) -> bytes:
    try:
        descriptor = _open(folder, last, _FILE)
    except (FileNotFoundError, UntrustedFolder):
        raise
    except OSError as error:  # a symbolic link, a socket, or no permission
        raise UntrustedFile(f"{last} cannot be opened: {error.strerror}") from None
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise UntrustedFile(f"{last} is not a regular file")
        if why := distrusted(found, owners):
            raise UntrustedFile(f"{last} {why}", foreign=True)
        if found.st_size > limit:
            raise UntrustedFile(f"{last} has {found.st_size} bytes, more than {limit}")
        parts, size = [], 0
        while size <= limit and (part := os.read(descriptor, min(_PIECE, limit + 1 - size))):
            parts.append(part)
            size += len(part)
        if size > limit:
            raise UntrustedFile(f"{last} grew beyond {limit} bytes")
        if touch and os.utime in os.supports_fd:
            with contextlib.suppress(OSError):  # the folder may be read-only
                os.utime(descriptor)
        return b"".join(parts)
    finally:
        os.close(descriptor)


def write(root: str, name: str, data: bytes, mode: int = 0o600, owners: Collection[int] = ()) -> None:
    """Writes a file under a temporary name and renames it. Creates missing folders. Raises UntrustedFolder and OSError.

    The file has the given mode with any umask. Users who may read the file may also search the new folders. Their mode is 0700, or 0755 for
    a file of mode 0644. If another process removes the folder meanwhile, it is created once more.
    """
    for last_attempt in (False, True):
        try:
            with _opened(root, name, mode | (mode & 0o444) >> 2, owners) as (folder, last):
                _replace(folder, last, data, mode)
            return
        except FileNotFoundError:
            if last_attempt:
                raise


def _replace(folder: int | str, last: str, data: bytes, mode: int) -> None:
    temporary = f".new-{os.urandom(8).hex()}"
    try:
        with os.fdopen(_open(folder, temporary, _NEW), "wb") as file:
            file.write(data)
            if mode != 0o600:
                os.fchmod(file.fileno(), mode)
        if isinstance(folder, int):
            os.replace(temporary, last, src_dir_fd=folder, dst_dir_fd=folder)
        else:
            os.replace(os.path.join(folder, temporary), os.path.join(folder, last))
    except FileNotFoundError:
        raise
    except BaseException:
        with contextlib.suppress(OSError):
            _unlink(folder, temporary)
        raise


def remove(root: str, name: str, owners: Collection[int] = ()) -> None:
    """Removes a file, or what stands in its place. Does nothing if it cannot: the folder may be read-only or not trusted."""
    with contextlib.suppress(OSError), _opened(root, name, owners=owners) as (folder, last):
        try:
            _unlink(folder, last)
        except (IsADirectoryError, PermissionError):  # POSIX lets `unlink` of a folder fail with EPERM
            import shutil

            if isinstance(folder, int):
                shutil.rmtree(last, ignore_errors=True, dir_fd=folder)
            else:
                shutil.rmtree(os.path.join(folder, last), ignore_errors=True)


def _unlink(folder: int | str, name: str) -> None:
    if isinstance(folder, int):
        os.unlink(name, dir_fd=folder)
    else:
        os.unlink(os.path.join(folder, name))


def _open(folder: int | str, name: str, flags: int) -> int:
    if isinstance(folder, int):
        return os.open(name, flags, 0o600, dir_fd=folder)
    return os.open(os.path.join(folder, name), flags, 0o600)


@contextlib.contextmanager
def _opened(root: str, name: str, create: int = 0, owners: Collection[int] = ()) -> Iterator[tuple[int | str, str]]:
    """Opens the folder of a file. Yields its descriptor (its path where the system has no `openat`) and the name of the file in it.
    `create` is the mode of missing folders, or 0 if none are made."""
    inner, _, last = name.rpartition("/")
    if not _AT:
        path = os.path.join(root, inner)
        if create:
            make_folder(path, create)
        yield path, last
        return
    if create:
        make_folder(root, create)
    descriptors = [_open_root(root, owners)]
    try:
        if inner:
            if create:
                _make_one(inner, create, descriptors[0])
            descriptors.append(os.open(inner, _FOLDER | _NO_FOLLOW, dir_fd=descriptors[0]))
            _check(os.path.join(root, inner), os.fstat(descriptors[1]), owners)
        yield descriptors[-1], last
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def make_folder(path: str, mode: int = 0o700) -> None:
    """Creates a folder and its missing parents, all with the given mode, unlike `os.makedirs`. Existing ones keep their modes."""
    try:
        _make_one(path, mode)
    except FileNotFoundError:
        make_folder(os.path.dirname(path), mode)
        _make_one(path, mode)


def _make_one(path: str, mode: int, at: int | None = None) -> None:
    try:
        os.mkdir(path, 0o700, dir_fd=at)
    except FileExistsError:
        return
    if mode != 0o700:
        set_mode(path, mode, at=at)


def set_mode(path: str, mode: int, owners: Collection[int] = (), at: int | None = None) -> None:
    """Sets the mode of a folder of this user, root or the given users, and follows no symbolic link. `path` is relative to the folder with
    the descriptor `at`, if given. Raises UntrustedFolder for a folder of another user, and OSError."""
    descriptor = os.open(path, _FOLDER | _NO_FOLLOW, dir_fd=at)
    try:
        owner = os.fstat(descriptor).st_uid
        if owner not in (_user(), 0, *owners):
            raise UntrustedFolder(f"{path} belongs to another user (uid {owner})")
        os.fchmod(descriptor, mode)
    finally:
        os.close(descriptor)


def _open_root(root: str, owners: Collection[int]) -> int:
    link = os.lstat(root)
    if stat.S_ISLNK(link.st_mode) and link.st_uid not in (_user(), 0, *owners):  # in /tmp anybody can place one
        raise UntrustedFolder(f"{root} is a symbolic link of another user (uid {link.st_uid})")
    descriptor = os.open(root, _FOLDER)
    try:
        _check(root, os.fstat(descriptor), owners)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _check(path: str, found: os.stat_result, owners: Collection[int]) -> None:
    if why := distrusted(found, owners):
        raise UntrustedFolder(f"{path} {why}", f"chmod go-w {path}" if found.st_uid == _user() else "")


def distrusted(found: os.stat_result, owners: Collection[int] = ()) -> str:
    """Why another user can change a file or folder; "" if none can but root, who can do anything, and the given users."""
    if found.st_uid not in (_user(), 0, *owners):
        return f"belongs to another user (uid {found.st_uid})"
    if found.st_mode & 0o022:
        who = "all users" if found.st_mode & 0o002 else "its group"
        return f"can be changed by {who} (mode {stat.S_IMODE(found.st_mode):04o})"
    return ""


def _user() -> int:
    return os.geteuid()
