"""scripts/prepare_data.py on small made files of the official form."""

import hashlib
import io
import subprocess
import sys
import tarfile

import pytest
from conftest import ROOT
from prepare_data import CORPORA, prepare

from hf_dualpath.errors import DataError
from hf_dualpath.training.settings import parse_recipe


def sgm(lines: list[str], kind: str) -> str:
    body = "\n".join(f'<seg id="{n}">{line}</seg>' for n, line in enumerate(lines, 1))
    return f'<{kind} setid="s">\n<doc docid="d">\n<p>\n{body}\n</p>\n</doc>\n</{kind}>\n'


def archive(path, members: dict[str, str]):
    with tarfile.open(path, "w:gz") as file:
        for name, text in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(text.encode())
            file.addfile(info, io.BytesIO(text.encode()))


@pytest.fixture
def wmt(tmp_path):
    folder = tmp_path / "official"
    folder.mkdir()
    for name, member, de, en in (
        ("europarl-v7", "training/europarl-v7.de-en", "Eins \n\nDrei\n", "One\nTwo\nThree\n"),
        ("commoncrawl", "commoncrawl.de-en", "Vier\u2028und\x85 fünf\n", "Four and  five\n"),
        ("nc-v10", "training/news-commentary-v10.de-en", "Sechs\n", "Six\n"),
    ):
        other = {f"{member.rsplit('.', 1)[0]}.fr-en.en": "no\n"}
        archive(folder / f"training-parallel-{name}.tgz", other | {f"{member}.de": de, f"{member}.en": en})
    for name, test in (("dev", "newstest2013"), ("test", "newstest2015-deen")):
        texts = {"src.de": ["Er sagt: &quot;Ja&quot;", "A &amp; B"], "ref.en": ['He says: "Yes"', "A &amp; B"]}
        kinds = {"src.de": "srcset", "ref.en": "refset"}
        members = {f"{name}/{test}-{side}.sgm": sgm(lines, kinds[side]) for side, lines in texts.items()}
        archive(folder / f"{name}.tgz", members)
    return folder


def test_wmt15(wmt, tmp_path):
    found = prepare("wmt15-deen", wmt, tmp_path / "out", any_count=True)
    lines = {path.name: path.read_bytes().decode().split("\n")[:-1] for path in (tmp_path / "out").glob("*.??")}
    assert lines["train.de"] == ["Eins", "Drei", "Vier und fünf", "Sechs"]
    assert lines["train.en"] == ["One", "Three", "Four and five", "Six"]
    assert lines["newstest2013.de"] == ['Er sagt: "Ja"', "A & B"] == lines["newstest2015.de"]
    assert found["pairs"]["train"] == {"read": 5, "written": 4}
    assert set(found["official"]) == set(CORPORA["wmt15-deen"].files)


@pytest.fixture
def iwslt(tmp_path):
    folder = tmp_path / "official"
    folder.mkdir()
    for name in ("train", "tst2012", "tst2013"):
        (folder / f"{name}.en").write_text("a b\n" * 5 + "c\n", encoding="utf-8")
        (folder / f"{name}.vi").write_text("à\n" * 6, encoding="utf-8")
    return folder


def test_iwslt15_counts_words(iwslt, tmp_path):
    found = prepare("iwslt15-envi", iwslt, tmp_path / "out", any_count=True)
    assert found["words"] == {"en": 2, "vi": 1}
    assert (tmp_path / "out/tst2013.vi").read_text(encoding="utf-8") == "à\n" * 6


@pytest.mark.parametrize("recipe", CORPORA)
def test_the_recipe_reads_what_is_written(recipe):
    data = parse_recipe(recipe, ["--output_dir", "runs/none"])[1]
    languages = data.source_language, data.target_language
    written = {f"{split}.{language}" for split in CORPORA[recipe].splits for language in languages}
    sides = (getattr(data, f"{s}_{k}") for s in ("train", "validation", "test") for k in ("source", "target"))
    assert set(sides) == written


def test_mistakes_are_told(iwslt, tmp_path):
    output = tmp_path / "out"
    with pytest.raises(DataError, match="Pairs of train: 6, where the paper's data have 132,500 to 133,500"):
        prepare("iwslt15-envi", iwslt, output)
    names = CORPORA["iwslt15-envi"].files
    sums = tmp_path / "sums"
    sums.write_text("".join(f"{hashlib.sha256((iwslt / n).read_bytes()).hexdigest()}  {n}\n" for n in names))
    prepare("iwslt15-envi", iwslt, output, sums, any_count=True)
    (iwslt / "train.en").write_text("other\n" * 6)
    with pytest.raises(DataError, match="train.en is not the file"):
        prepare("iwslt15-envi", iwslt, output, sums, any_count=True)
    (iwslt / "train.en").write_text("one\n")
    with pytest.raises(DataError, match="unequal"):
        prepare("iwslt15-envi", iwslt, output, any_count=True)
    (iwslt / "train.en").unlink()
    command = [
        sys.executable,
        ROOT / "scripts/prepare_data.py",
        "iwslt15-envi",
        "--official",
        iwslt,
        "--output",
        output,
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1 and "lacks train.en" in done.stderr and "Traceback" not in done.stderr
