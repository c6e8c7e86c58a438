"""Text files."""

import gzip
import zlib
from pathlib import Path

from ..errors import DataError


def as_file_name(name: str) -> str:
    """A name that a checkpoint gives, as part of a file's name: it must not lead to another folder."""
    if "/" in name or "\\" in name or name in ("", ".", ".."):
        raise ValueError(f"{name!r} cannot be part of a file's name: the checkpoint has strange names of languages.")
    return name


def read_lines(path: str | Path) -> list[str]:
    """Lines of a UTF-8 text file, plain or gzip, without the white space around them."""
    return [line.strip() for line in read_raw_lines(path)]


def read_raw_lines(path: str | Path) -> list[str]:
    """Lines of a UTF-8 text file, plain or gzip, as they are."""
    path = Path(path)
    if not path.is_file():
        raise DataError(f"There is no file {path}.")
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{path} is not a whole gzip file.") from error
    lines = raw.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    decoded = []
    for number, line in enumerate(lines, 1):
        try:
            decoded.append(line.decode("utf-8").removesuffix("\r"))
        except UnicodeDecodeError as error:
            raise DataError(f"{path}, line {number}, is not UTF-8: convert the file.") from error
    return decoded
