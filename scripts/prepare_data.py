"""The paper's data from the official files: what the recipes `wmt15-deen` and `iwslt15-envi` read.

    python scripts/prepare_data.py wmt15-deen --official DOWNLOADS --output data/wmt15-deen
    python scripts/prepare_data.py iwslt15-envi --official DOWNLOADS --output data/iwslt15-envi

It downloads nothing. DOWNLOADS holds the files below under their official names. `--checksums FILE`, with lines as
`sha256sum` writes them, verifies them first. Counts that differ from the paper's are an error without `--any-count`.

wmt15-deen, from the pages of WMT15: training-parallel-europarl-v7.tgz, training-parallel-commoncrawl.tgz,
training-parallel-nc-v10.tgz, dev.tgz, test.tgz. iwslt15-envi, from Stanford's page of NMT data: train.en, train.vi,
tst2012.en, tst2012.vi, tst2013.en, tst2013.vi.
"""

import argparse
import hashlib
import html
import json
import re
import sys
import tarfile
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from hf_dualpath.errors import DataError


@dataclass
class Part:
    """One side of a text: a file, or a member of an archive, by the end of its name; `.sgm` files are unwrapped."""

    file: str
    member: str | None = None


@dataclass
class Corpus:
    """Languages, the parts of each split in their order (source, target), and what the paper says of them."""

    languages: tuple[str, str]
    splits: dict[str, list[tuple[Part, Part]]]
    pairs: dict[str, tuple[int, int]]  # by split: at least, at most
    words_seen_five_times: tuple[tuple[int, int], tuple[int, int]] | None = None
    files: list[str] = field(init=False)

    def __post_init__(self):
        parts = (part for pairs in self.splits.values() for pair in pairs for part in pair)
        self.files = list(dict.fromkeys(part.file for part in parts))


def in_archive(archive: str, name: str) -> tuple[Part, Part]:
    return Part(archive, f"{name}.de"), Part(archive, f"{name}.en")


CORPORA = {
    "wmt15-deen": Corpus(
        ("de", "en"),
        {
            "train": [
                in_archive("training-parallel-europarl-v7.tgz", "europarl-v7.de-en"),
                in_archive("training-parallel-commoncrawl.tgz", "commoncrawl.de-en"),
                in_archive("training-parallel-nc-v10.tgz", "news-commentary-v10.de-en"),
            ],
            "newstest2013": [
                (Part("dev.tgz", "newstest2013-src.de.sgm"), Part("dev.tgz", "newstest2013-ref.en.sgm")),
            ],
            "newstest2015": [
                (Part("test.tgz", "newstest2015-deen-src.de.sgm"), Part("test.tgz", "newstest2015-deen-ref.en.sgm")),
            ],
        },
        {"train": (4_400_000, 4_600_000), "newstest2013": (3000, 3000), "newstest2015": (2169, 2169)},
    ),
    "iwslt15-envi": Corpus(
        ("en", "vi"),
        {name: [(Part(f"{name}.en"), Part(f"{name}.vi"))] for name in ("train", "tst2012", "tst2013")},
        {"train": (132_500, 133_500), "tst2012": (1553, 1553), "tst2013": (1268, 1268)},
        ((16_500, 17_500), (7_650, 7_750)),
    ),
}


def lines_of(part: Part, folder: Path) -> Iterator[str]:
    """Lines of a part, white space tidied; a line ends at a line feed and nowhere else."""
    if part.member is None:
        with open(folder / part.file, "rb") as file:
            yield from tidy(file)
        return
    with tarfile.open(folder / part.file, "r|*") as archive:  # a stream: nothing is unpacked to the disk
        for member in archive:
            if member.isfile() and Path(member.name).name == part.member:
                lines = tidy(archive.extractfile(member))
                yield from segments(lines) if part.member.endswith(".sgm") else lines
                return
    raise DataError(f"{part.file} holds no {part.member}: is it the official archive?")


def tidy(raw: Iterable[bytes]) -> Iterator[str]:
    return (" ".join(line.decode("utf-8").split()) for line in raw)


def segments(lines: Iterable[str]) -> Iterator[str]:
    """The texts of the `<seg>` elements, one of which may span lines."""
    for text in re.findall(r"<seg[^>]*>(.*?)</seg>", " ".join(lines), re.IGNORECASE):
        yield html.unescape(text).strip()


def check_files(corpus: Corpus, folder: Path, checksums: Path | None):
    missing = [name for name in corpus.files if not (folder / name).is_file()]
    if missing:
        raise DataError(f"{folder} lacks {', '.join(missing)}: download them from the official page first.")
    if checksums is None:
        return
    expected = dict(reversed(line.split(maxsplit=1)) for line in checksums.read_text().splitlines() if line.strip())
    expected = {Path(name.strip().lstrip("*")).name: digest for name, digest in expected.items()}
    for name in corpus.files:
        if name not in expected:
            raise DataError(f"{checksums} says nothing of {name}.")
        if sha256(folder / name) != expected[name].lower():
            raise DataError(f"{name} is not the file that {checksums} describes: download it again.")


def sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(2**20):
            digest.update(block)
    return digest.hexdigest()


def write_split(parts: list[tuple[Part, Part]], folder: Path, targets: list[Path], is_train: bool) -> tuple[int, int]:
    """Writes both sides, training pairs with an empty side left out; returns how many were read and written."""
    read = written = 0
    with (
        open(targets[0], "w", encoding="utf-8", newline="\n") as sources,
        open(targets[1], "w", encoding="utf-8", newline="\n") as translations,
    ):
        for source_part, target_part in parts:
            sides = lines_of(source_part, folder), lines_of(target_part, folder)
            end = object()
            while True:
                source, target = (next(side, end) for side in sides)
                if source is end and target is end:
                    break
                if source is end or target is end:
                    name = source_part.member or source_part.file
                    raise DataError(f"The two sides of {name} have unequal numbers of lines.")
                read += 1
                if is_train and not (source and target):
                    continue
                sources.write(source + "\n")
                translations.write(target + "\n")
                written += 1
    return read, written


def frequent_words(path: Path, times: int = 5) -> int:
    counts = Counter()
    with open(path, encoding="utf-8", newline="\n") as file:
        for line in file:
            counts.update(line.split())
    return sum(count >= times for count in counts.values())


def check_count(name: str, found: int, bounds: tuple[int, int], any_count: bool):
    low, high = bounds
    if not low <= found <= high and not any_count:
        expected = f"{low:,}" if low == high else f"{low:,} to {high:,}"
        raise DataError(
            f"{name}: {found:,}, where the paper's data have {expected}. `--any-count` goes on all the same."
        )


def prepare(name: str, official: Path, output: Path, checksums: Path | None = None, any_count: bool = False) -> dict:
    """Writes the files that the recipe reads, and `prepared.json` with all counts and digests."""
    corpus = CORPORA[name]
    check_files(corpus, official, checksums)
    output.mkdir(parents=True, exist_ok=True)
    found = {"official": {file: sha256(official / file) for file in corpus.files}, "pairs": {}, "sha256": {}}
    for split, parts in corpus.splits.items():
        targets = [output / f"{split}.{language}" for language in corpus.languages]
        read, written = write_split(parts, official, targets, is_train=split == "train")
        check_count(f"Pairs of {split}", written, corpus.pairs[split], any_count)
        found["pairs"][split] = {"read": read, "written": written}
        found["sha256"] |= {target.name: sha256(target) for target in targets}
        print(f"{split}: {written:,} pairs, {read - written:,} with an empty side left out", flush=True)
    if corpus.words_seen_five_times is not None:
        for language, bounds in zip(corpus.languages, corpus.words_seen_five_times):
            words = frequent_words(output / f"train.{language}")
            check_count(f"Words of {language} seen five times", words, bounds, any_count)
            found.setdefault("words", {})[language] = words
            print(f"{language}: {words:,} words seen at least five times", flush=True)
    (output / "prepared.json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=CORPORA)
    parser.add_argument("--official", type=Path, required=True, help="folder with the official files")
    parser.add_argument("--output", type=Path, required=True, help="folder to write; the recipe's --data_dir")
    parser.add_argument("--checksums", type=Path, help="expected digests, as sha256sum writes them")
    parser.add_argument("--any-count", action="store_true", help="accept other counts than the paper's")
    arguments = parser.parse_args()
    try:
        prepare(arguments.name, arguments.official, arguments.output, arguments.checksums, arguments.any_count)
    except (DataError, tarfile.TarError, UnicodeDecodeError, OSError) as error:
        sys.exit(f"prepare_data.py: {error}")
    print(f"Now: accelerate launch scripts/train.py {arguments.name} --data_dir {arguments.output}")


if __name__ == "__main__":
    main()
