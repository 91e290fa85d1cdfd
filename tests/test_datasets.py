"""Samples from generators, from files and from images."""

import functools
import io
import math
import pickle
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from pyarrow import parquet as parquet_files
from scipy import stats
from torch import Tensor

from scoremh import datasets
from scoremh.datasets import Variant
from tests.cases import seeded

FALSE_ALARM = 1e-4 / 12  # of each p-value: there are 12 in this file

Draw = Callable[..., Tensor]
GENERATORS: dict[str, tuple[Draw, int]] = {
    "moons": (datasets.moons, 2),
    "s curve": (datasets.s_curve, 3),
    "swiss roll": (datasets.swiss_roll, 3),
    "pinwheel": (datasets.pinwheel, 2),
    "correct pinwheel": (functools.partial(datasets.pinwheel, variant="correct"), 2),
    "gaussian": (datasets.gaussian, 1),
}
each_generator = pytest.mark.parametrize(("draw", "d"), GENERATORS.values(), ids=GENERATORS)
each_pinwheel = pytest.mark.parametrize("variant", ["paper", "correct"])


def standard_normal(x: Tensor) -> None:
    """Fail unless these numbers follow N(0, 1)."""
    assert stats.kstest(x.flatten().numpy(), "norm").pvalue > FALSE_ALARM


@each_generator
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_draws_have_the_shape_the_dtype_and_the_bits_of_the_seed(draw: Draw, d: int, dtype: torch.dtype) -> None:
    x = draw(11, generator=seeded(), dtype=dtype)
    assert (x.shape, x.dtype) == ((11, d), dtype)
    assert torch.equal(x, draw(11, generator=seeded(), dtype=dtype))
    assert not torch.equal(x, draw(11, generator=seeded(1), dtype=dtype))
    assert draw().shape == (10_000, d)
    assert draw(1).dtype == torch.get_default_dtype()


@each_generator
def test_no_global_generator_is_touched(draw: Draw, d: int) -> None:
    def state() -> bytes:
        return pickle.dumps((torch.random.get_rng_state().tolist(), np.random.get_state()))  # noqa: NPY002

    before = state()
    draw(3)
    draw(3, generator=seeded())
    assert state() == before


def off_moons(x: Tensor) -> Tensor:
    outer, inner = x.norm(dim=1), (x - torch.tensor([1.0, 0.5])).norm(dim=1)
    return torch.minimum((outer - 1).abs(), (inner - 1).abs())


def off_s_curve(x: Tensor) -> Tensor:
    return x[:, 0].square() + (x[:, 2].abs() - 1).square() - 1  # two arcs of unit circles


def off_swiss_roll(x: Tensor) -> Tensor:
    r = x[:, [0, 2]].norm(dim=1)  # equals the angle
    return torch.stack([x[:, 0] - r * r.cos(), x[:, 2] - r * r.sin()], dim=1)


CURVES: dict[str, tuple[Draw, float, Callable[[Tensor], Tensor], list[float]]] = {
    "moons": (datasets.moons, 0.1, off_moons, [0.5, 0.25]),
    "s curve": (datasets.s_curve, 0.1, off_s_curve, [0.0, 1.0, 0.0]),
    # of t (cos t, sin t), with t uniform on (3 pi / 2, 9 pi / 2): the antiderivatives are t sin + cos, sin - t cos
    "swiss roll": (datasets.swiss_roll, 0.5, off_swiss_roll, [2.0, 10.5, 2 / (3 * math.pi)]),
}


@pytest.mark.parametrize("curve", CURVES)
def test_draws_are_a_curve_and_gaussian_noise_as_in_the_paper(curve: str) -> None:
    draw, noise, off, mean = CURVES[curve]
    clean = draw(noise=0.0, generator=seeded(), dtype=torch.float64)
    assert off(clean).abs().max() < 1e-9
    error = clean.std(0) / math.sqrt(len(clean))
    assert ((clean.mean(0) - torch.tensor(mean)).abs() < 5 * error).all()
    standard_normal((draw(generator=seeded(), dtype=torch.float64) - clean) / noise)


def test_the_gaussian_matches_that_of_the_paper_with_variance_2() -> None:
    standard_normal((datasets.gaussian(generator=seeded(), dtype=torch.float64) - 3) / math.sqrt(2))
    standard_normal((datasets.gaussian(mean=-1.0, std=0.1, generator=seeded(1), dtype=torch.float64) + 1) / 0.1)


def arms(variant: Variant, **options: Any) -> tuple[Tensor, Tensor]:
    """Return the same draws with and without tangential noise."""
    make = functools.partial(datasets.pinwheel, variant=variant, dtype=torch.float64, **options)
    return make(generator=seeded()), make(tangential_std=0.0, generator=seeded())


@each_pinwheel
def test_the_arms_of_a_pinwheel(variant: Variant) -> None:
    _, clean = arms(variant)
    r = clean.norm(dim=1) * torch.tensor([[1.0], [-1.0]])  # a radius below 0 points the other way
    angle = torch.stack([torch.atan2(clean[:, 1], clean[:, 0]), torch.atan2(-clean[:, 1], -clean[:, 0])])
    k = (angle - 0.25 * r) / (2 * math.pi / 5)
    fits = (k - k.round()).abs() < 1e-9
    assert (fits.sum(0) == 1).all()
    standard_normal((r[fits] - 1) / 0.5)
    assert stats.chisquare(torch.bincount(k[fits].round().long() % 5).numpy()).pvalue > FALSE_ALARM


def test_the_printed_pinwheel_adds_one_number_to_both_coordinates() -> None:
    noisy, clean = arms("paper")
    noise = noisy - clean
    torch.testing.assert_close(noise[:, 0], noise[:, 1], rtol=0, atol=1e-14)
    standard_normal(noise[:, 0] / 0.05)


def test_the_noise_of_the_correct_pinwheel_is_orthogonal_to_the_radius_and_independent_of_it() -> None:
    noisy, clean = arms("correct")
    noise, radius = noisy - clean, clean.norm(dim=1)
    assert (noise * clean).sum(1).abs().max() < 1e-14
    across = (noise[:, 1] * clean[:, 0] - noise[:, 0] * clean[:, 1]) / radius
    standard_normal(across / 0.05)
    assert stats.spearmanr(across, radius).pvalue > FALSE_ALARM


@each_pinwheel
def test_only_the_printed_pinwheel_has_an_arm_without_width(variant: Variant) -> None:
    noisy, clean = arms(variant, classes=8, rate=0.0)
    diagonal = noisy[(clean[:, 0] - clean[:, 1]).abs() < 1e-9]  # the arms at 45 and 225 degrees
    width = torch.linalg.svdvals(diagonal)[1] / math.sqrt(len(diagonal))
    assert width < 1e-14 if variant == "paper" else abs(width - 0.05) < 0.005


@each_pinwheel
def test_the_printed_noise_runs_along_an_arm_at_the_parameters_of_the_paper_too(variant: Variant) -> None:
    noisy, clean = arms(variant, classes=1)
    _, further = arms(variant, classes=1, radial_std=0.5 + 1e-6)
    noise, arm = (torch.nn.functional.normalize(v, dim=1, eps=0) for v in (noisy - clean, further - clean))
    sine = (noise[:, 0] * arm[:, 1] - noise[:, 1] * arm[:, 0]).abs()
    assert sine.min() < 1e-3 if variant == "paper" else sine.min() > 0.7


BAD_ARGUMENTS: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "no points": (lambda: datasets.moons(0), ValueError, "n of at least 1, got 0"),
    "integers": (
        lambda: datasets.moons(3, dtype=torch.int64),
        TypeError,
        "dtype to be a floating torch.dtype, got torch.int64",
    ),
    "negative noise": (
        lambda: datasets.s_curve(3, noise=-1.0),
        ValueError,
        "noise of at least 0, got -1.0. Pass 0",
    ),
    "infinite std": (
        lambda: datasets.gaussian(3, std=math.inf),
        ValueError,
        "std to be finite, got inf",
    ),
    "no arms": (lambda: datasets.pinwheel(3, classes=0), ValueError, "classes of at least 1, got 0"),
    "a rate of NaN": (lambda: datasets.pinwheel(3, rate=math.nan), ValueError, "rate to be finite, got nan"),
}


def test_digits_match_those_of_scikit_learn_in_17_levels() -> None:
    x = datasets.digits()
    assert (x.shape, x.dtype) == ((1797, 1, 8, 8), torch.float32)
    assert torch.equal(x.unique(), torch.linspace(-1, 1, 17))


@pytest.mark.parametrize("case", BAD_ARGUMENTS)
def test_bad_arguments_raise_errors(case: str) -> None:
    attempt, kind, text = BAD_ARGUMENTS[case]
    with pytest.raises(kind, match=re.escape(text)):
        attempt()


@pytest.mark.slow
def test_wrong_types_and_words_raise_errors_without_run_time_checks() -> None:
    script = """
from scoremh import datasets
calls = ("moons(1.5)", "moons(3, noise='0.1')", "pinwheel(3, variant='right')")
for call in calls:
    try:
        eval("datasets." + call)
    except (TypeError, ValueError) as error:
        print(error)
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert [line.split(". ")[0] for line in ran.stdout.splitlines()] == [
        "expected n to be an int, got float 1.5",
        "expected noise to be a number, got str '0.1'",
        "expected variant to be one of 'paper', 'correct', got 'right'",
    ]


# Loading samples: every format to the last bit, and everything that can be wrong in a file.


def npy(array: Any) -> bytes:
    np.save(out := io.BytesIO(), array)
    return out.getvalue()


def npz(**named: Any) -> bytes:
    np.savez(out := io.BytesIO(), **named)
    return out.getvalue()


def parquet(**columns: Any) -> bytes:
    return bytes(pd.DataFrame(columns).to_parquet())


def header(*, shape: Any) -> bytes:
    text = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\x01\x00" + (len(text) + 1).to_bytes(2, "little") + text + b"\n"


def bomb() -> bytes:
    """Return an npz file of 260 MB of zeros."""
    with zipfile.ZipFile(out := io.BytesIO(), "w", zipfile.ZIP_DEFLATED) as archive:
        np.save(zeros := io.BytesIO(), np.zeros(1, dtype=np.uint8))
        start = zeros.getvalue()[:-1].replace(b"(1,), }" + b" " * 8, b"(260000000,), }")
        with archive.open("x.npy", "w") as member:
            member.write(start)
            for _ in range(260):
                member.write(bytes(1_000_000))
    return out.getvalue()


def repeated() -> bytes:
    """Return a parquet file of 40 million equal rows."""
    rows = pyarrow.DictionaryArray.from_arrays(np.zeros(40_000_000, dtype=np.int8), pyarrow.array([1.5]))
    parquet_files.write_table(pyarrow.table({"x": rows}), out := io.BytesIO(), row_group_size=40_000_000)
    return out.getvalue()


BOMB, REPEATED = bomb(), repeated()
X = np.array([[1.0, -2.5], [0.1, 1e-30], [3.0, 4.0]])
OBJECTS = np.array([{}, 1], dtype=object)

READ: dict[str, tuple[bytes, Any]] = {
    "plain.csv": (b"1,-2.5\n0.1,1e-30\n3,4\n", X),
    "header.csv": (b"x, y\n1,-2.5\n0.1,1e-30\n3,4", X),
    "bom.csv": (b"\xef\xbb\xbf1,-2.5\r\n\r\n.1,1E-30\r\n 3 ,+4\r\n", X),
    "quoted.csv": (b'"x","the ""y"""\n"1",-2.5\n0.1,1e-30\n3,4\n', X),
    "tabs.csv": (b"x\ty z\n1\t-2.5\n0.1\t1e-30\n3\t4\n", X),
    "tabs.tsv": (b"1\t-2.5\n0.1\t1e-30\n3\t4\n", X),
    "numbers.CSV": (b"count\n1\n2\n", [[1], [2]]),
    "array.npy": (npy(X), X),
    "vector.npy": (npy(X[:, 0]), X[:, :1]),
    "big endian.npy": (npy(X.astype(">f8")), X),
    "half.npy": (npy(X.astype(np.float16)), X.astype(np.float16)),
    "bools.npy": (npy(X > 1), X > 1),
    "images.npy": (npy(np.full((2, 1, 3, 4), 7, dtype=np.uint8)), np.full((2, 1, 3, 4), 7)),
    "fortran.npy": (npy(np.asfortranarray(X)), X),
    "one.npz": (npz(samples=X), X),
    "table.parquet": (parquet(x=X[:, 0], y=X[:, 1]), X),
    "kinds.parquet": (parquet(x=[1, 2], y=[True, False], z=pd.array([3, 4], dtype="Int8")), [[1, 1, 3], [2, 0, 4]]),
    "index.parquet": (pd.DataFrame(X, columns=["x", "y"], index=[7, 3, 5]).to_parquet(), X),
}


@pytest.mark.parametrize("name", READ)
@pytest.mark.parametrize("dtype", [None, torch.float64])
def test_load(name: str, dtype: torch.dtype | None, tmp_path: Path) -> None:
    data, expected = READ[name]
    (tmp_path / name).write_bytes(data)
    x = datasets.load(tmp_path / name, dtype=dtype)
    assert torch.equal(x, torch.tensor(expected, dtype=dtype or torch.get_default_dtype()))


def test_load_takes_the_array_that_key_names(tmp_path: Path) -> None:
    (tmp_path / "a.npz").write_bytes(npz(x=X, y=X[:, 0], objects=OBJECTS))
    assert torch.equal(datasets.load(str(tmp_path / "a.npz"), key="y"), torch.tensor(X[:, :1], dtype=torch.float32))


REFUSED: dict[str, tuple[bytes, str]] = {
    "semicolons.csv": (b"1;2\n3;4\n", "to separate values by commas or tabs, got '1;2' in its first line"),
    "named.csv": (b"x;y\n3;4\n", "to separate values by commas or tabs, got 'x;y' in its first line"),
    "decimal commas.csv": (b"x;y\n3,5;4,5\n", "got 3 in line 2. Correct that line: commas or tabs separate values"),
    "blanks.csv": (b"1 2\n3 4\n", "to separate values by commas or tabs"),
    "years.csv": (
        b"2019,2020\n1.5,2.5\n3.1,4.7\n",
        "got numbers unlike the rest: 2019,2020. Name the columns, as in x2019",
    ),
    "years of counts.csv": (b"2019,2020\n1,25\n31,4\n", "got numbers unlike the rest: 2019,2020. Name the columns"),
    "squares.csv": (
        b"x,y\n1,2\n3,1e30\n",
        "whose squares are finite, got 1 that are not, the first 1e+30 in line 3, column 'y'",
    ),
    "over lines.csv": (b'x,y\n1,2\n3,"4\n5"\n', "a value in quotes that spans several lines"),
    "one line.csv": (b"1.5," * 900_000, "a line of more than 3,200,000 characters; save wide arrays as npy"),
    "wide.csv": (b"1," * 100_001 + b"1\n", "to have at most 100,000 columns, got 100,002"),
    "claims.npy": (header(shape=(10**30,)), "to contain (1000000000000000000000000000000,) values"),
    "negative.npy": (header(shape=(-1, -1)) + bytes(8), "to contain (-1, -1) values"),
    "brackets.npy": (header(shape="(" * 3000), "to contain arrays of numbers in numpy's format, got"),
    "bomb.npz": (BOMB, "to unpack to at most 256,000,000 bytes, got 260,000,128 from 2"),
    "rows.parquet": (REPEATED, "to unpack to at most 256,000,000 bytes, got 320,000,000 from "),
    "text.csv": (b"x,kind\n\n1,2\n3,cat\n", "to contain real numbers only, got 'cat' in line 4, column 'kind'"),
    "text without header.csv": (b"1,2\n3,cat\n", "got 'cat' in line 2, column 1. Remove such columns, or encode them"),
    "half a header.csv": (b"x,1\n1,2\n3,4\n", "got 'x' in line 1, column 0"),
    "dates.csv": (b"t\n2024_01\n2024_02\n", "got '2024_01' in line 2, column 't'"),
    "missing.csv": (b"x,y\n1,2\n3,\n,4\n", "got 2 that are not, the first nan in line 3, column 'y'"),
    "inf.csv": (
        b"1,2\n3,-inf\n",
        "finite float32 numbers, got 1 that are not, the first -inf in line 2, column 1",
    ),
    "short.csv": (b"x,y\n1,2\n3\n", "to have 2 values in every row, got 1 in line 3"),
    "long.csv": (b"1,2\n\n3,4,5\n", "to have 2 values in every row, got 3 in line 3"),
    "empty.csv": (b"", "to contain samples, got an empty file"),
    "empty.parquet": (b"", "to contain samples, got an empty file"),
    "blank.csv": (b"\n\n", "to contain samples, got blank lines only"),
    "header alone.csv": (b"x,y\n", "at least 2 rows of numbers, got shape (0, 2)"),
    "one row.csv": (b"x,y\n1,2\n", "at least 2 rows of numbers, got shape (1, 2)"),
    "constant.csv": (b"x,y,z\n1,2,3\n2,2,3\n", "got 2 constant: 'y', 'z'. Remove them"),
    "column numbers.csv": (b"0,1\n0.5,2\n0.1,3\n", "got column numbers: 0,1. Name the columns"),
    "index.csv": (
        b",x\n0,0.5\n1,0.1\n",
        "to name every column, got no name for column 0. Name it, or remove it if it is an index",
    ),
    "binary.csv": (b"\xff\xfe\x00", "to be csv text in UTF-8, got 'utf-8' codec can't decode"),
    "text.npy": (npy(np.array(["a", "b"])), "real numbers only, got values of type <U1"),
    "complex.npy": (npy(1j * X), "real numbers only, got values of type complex128"),
    "records.npy": (npy(np.zeros(3, dtype=[("x", float)])), "got values of type [('x', '<f8')]"),
    "objects.npy": (npy(OBJECTS), "got pickled objects, or a file of another kind. Pickles are not read"),
    "pickle.npy": (pickle.dumps([1, 2]), "got pickled objects, or a file of another kind. Pickles are not read"),
    "truncated.npy": (npy(X)[:-8], "(3, 2) values of type float64, according to its header, got 40 bytes of them"),
    "one number.npy": (npy(np.float64(3)), "at least 2 rows of numbers, got shape ()"),
    "no columns.npy": (npy(np.empty((3, 0))), "at least 2 rows of numbers, got shape (3, 0)"),
    "nan.npy": (npy(np.array([1.0, np.nan])), "the first nan in row 1, column 0. Remove or fill in those rows"),
    "nan image.npy": (
        npy(np.full((2, 1, 2, 2), np.inf)),
        "got 8 that are not, the first inf in row 0, column 0, 0, 0",
    ),
    "large.npy": (npy(np.array([1.0, 1e300])), "the first 1e+300 in row 1, column 0. Pass dtype=torch.float64"),
    "close.npy": (npy(np.array([1.0, 1 + 1e-12])), "got 1 constant: 0. Remove them"),
    "flat images.npy": (npy(np.zeros((2, 64))), "got 64 constant: 0, 1, 2, 3, 4, .... Remove them"),
    "pickle.npz": (npz(x=OBJECTS), "got pickled objects, or a file of another kind. Pickles are not read"),
    "two.npz": (
        npz(x=X, y=X),
        "to contain one array, or key= to name one of them, got key=None and the arrays ['x', 'y']",
    ),
    "none.npz": (npz(), "got key=None and the arrays []"),
    "truncated.npz": (npz(x=X)[:-30], "in numpy's format, got File is not a zip file"),
    "text.parquet": (parquet(x=[1.0, 2.0], kind=["cat", "dog"]), "got 'cat' of type "),
    "dates.parquet": (parquet(t=pd.to_datetime(["2024-01-01", "2024-01-02"])), "in row 0, column 't'"),
    "lists.parquet": (parquet(x=[[1, 2], [3, 4]]), "of type object in row 0, column 'x'"),
    "missing.parquet": (parquet(x=[1, 2], y=pd.array([3, None], dtype="Int64")), "the first nan in row 1, column 'y'"),
    "constant.parquet": (parquet(x=[1.0, 2.0], y=[3, 3]), "got 1 constant: 'y'"),
    "other.parquet": (b"PAR0 and more bytes", "to be a parquet file, got "),
    "table.xlsx": (b"PK", "to end in one of .csv, .tsv, .npy, .npz, .parquet, got '.xlsx'. Convert it"),
    "noname": (b"1,2", "to end in one of .csv, .tsv, .npy, .npz, .parquet, got ''"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_load_rejects(name: str, tmp_path: Path) -> None:
    data, text = REFUSED[name]
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ValueError, match=re.escape(text)) as caught:
        datasets.load(tmp_path / name)
    assert str(caught.value).startswith(f"expected {tmp_path / name} to ")


def test_load_rejects_a_wrong_key(tmp_path: Path) -> None:
    (tmp_path / "a.npz").write_bytes(npz(x=X))
    with pytest.raises(ValueError, match=re.escape("got key='y' and the arrays ['x']. Pass one of those names as key")):
        datasets.load(tmp_path / "a.npz", key="y")
    (tmp_path / "a.npy").write_bytes(npy(X))
    with pytest.raises(ValueError, match="to be an npz file, since key is given, got key='x'"):
        datasets.load(tmp_path / "a.npy", key="x")


def test_load_rejects_a_missing_file_and_an_integer_dtype(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"expected .*a.csv to be a file, got no such file. Check the path"):
        datasets.load(tmp_path / "a.csv")
    with pytest.raises(TypeError, match=r"dtype to be a floating torch.dtype, got torch.int64"):
        datasets.load(tmp_path / "a.csv", dtype=torch.int64)


def test_parquet_without_pyarrow_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    with pytest.raises(
        ImportError, match=r"expected pyarrow, of the extra 'parquet', .*Run: pip install 'scoremh\[parquet\]'"
    ):
        datasets.load(tmp_path / "a.parquet")


finite = st.floats(-1e150, 1e150)  # larger numbers raise an error, since their squares are infinite


@given(arrays(np.float64, st.tuples(st.integers(2, 5), st.integers(1, 3)), elements=finite))
def test_what_is_saved_is_loaded_to_the_last_bit(tmp_path_factory: pytest.TempPathFactory, x: Any) -> None:
    x[0], x[1] = -1.0, 1.0  # no column is constant
    folder = tmp_path_factory.mktemp("round")
    np.save(folder / "x.npy", x)
    pd.DataFrame(x).add_prefix("x").to_csv(folder / "x.csv", index=False)
    for name in ("x.npy", "x.csv"):
        assert torch.equal(datasets.load(folder / name, dtype=torch.float64), torch.from_numpy(x))
