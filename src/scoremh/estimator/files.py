"""A run folder: `config.json`, which describes the run, and files whose contents it holds a hash of.

`config.json` holds a hash of every file and of itself. A file is first written under a temporary name, then its hash is
recorded, and only then it is renamed: an interrupted write leaves the old file or the new one, and either is valid.

A fitted estimator as files: settings in JSON, weights and held-out rows in safetensors, no pickle.
"""

import errno
import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from scoremh._shared import checks, files
from scoremh._shared.files import naming, reading, replacing, require_no_links, save_tensors
from scoremh.balance_matching import AcceptanceFit
from scoremh.estimator.diagnosis import RULES, Diagnosis, acceptance_name
from scoremh.estimator.frames import layout_from_json, layout_to_json
from scoremh.estimator.table import Table
from scoremh.sampler import Sampler
from scoremh.sampling.pools import Pool
from scoremh.score_matching import ScoreFit
from scoremh.training import versions

if TYPE_CHECKING:
    from scoremh.estimator.model import ScoreMH


CONFIG = "config.json"


@dataclass(frozen=True)
class RunFolder:
    """A folder and its configuration.

    Args:
        path: Path of the folder.
        config: Contents of `config.json`.
    """

    path: Path
    config: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def create(cls, path: Path, config: Mapping[str, Any]) -> "RunFolder":
        """Create the folder of a run; refuse one that holds a run already.

        Args:
            path: Path of the folder.
            config: First contents of `config.json`.
        """
        if (path / CONFIG).exists() or (path.exists() and not path.is_dir()):
            got = "one with a run in it" if path.is_dir() else "a file"
            raise FileExistsError(checks.message(f"{path} to be a new folder", got, "Choose another folder."))
        folder = cls(path, {"versions": versions(), **config, "files": {}})
        try:
            path.mkdir(parents=True, exist_ok=True)
            require_no_links(path)
            folder.update()
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT):  # a full disk is no wrong folder
                raise
            fix = "Choose a folder with write permission."
            raise PermissionError(checks.message(f"{path} to be writable", error.strerror, fix)) from error
        return folder

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """Open the folder of a run; refuse one that is damaged, or of another version.

        Args:
            path: Path of the folder.
        """
        place = path / CONFIG
        if not place.is_file():
            got = f"no {CONFIG} there" if path.is_dir() else "no such folder"
            fix = "Create one with `scoremh fit data.csv --out FOLDER` or ScoreMH.save."
            raise FileNotFoundError(checks.message(f"{path} to be the folder of a run", got, fix))
        require_no_links(path)
        _require_version(place)
        return cls(path, files.read_json(place, "The file is damaged or was edited: delete the folder, and fit again."))

    def update(self, **entries: Any) -> None:
        """Write entries to `config.json`; what another process wrote there since is kept."""
        self._write(self._current_config() | entries)

    def _current_config(self) -> dict[str, Any]:
        """Return what `config.json` holds now."""
        return RunFolder.open(self.path).config if (self.path / CONFIG).exists() else self.config

    def _write(self, config: dict[str, Any]) -> None:
        self.config.update(config)
        files.write_json(self.path / CONFIG, config)

    def put(self, name: str, write: Callable[[Path], object], *, outdates: Sequence[str] = ()) -> list[str]:
        """Write a file of the run, and return the names of the files that were removed because of it.

        Args:
            name: Name of the file.
            write: Function that writes the file to the path it is given.
            outdates: Names of files that are about the old one, and removed once the new one is written.
        """
        with replacing(self.path / name) as partial:
            write(partial)
            new = _file_hash(partial)
            removed = [other for other in outdates if (self.path / other).exists()]
            self._record(name, lambda old: [*old, new])
            self.remove(*outdates)
        self._record(name, lambda _: [new])
        return removed

    def _record(self, name: str, change: Callable[[list[str]], list[str]]) -> None:
        """Change the hashes of which a file must have one."""
        now = self._current_config()
        self._write(now | {"files": now["files"] | {name: change(now["files"].get(name, []))}})

    def remove(self, *names: str) -> None:
        """Delete files of the run.

        Args:
            names: Names of the files.
        """
        now = self._current_config()
        self._write(now | {"files": {name: hashes for name, hashes in now["files"].items() if name not in names}})
        for name in names:
            (self.path / name).unlink(missing_ok=True)

    def get(self, name: str, fix: str = "Fit again.") -> Path:
        """Return the path of a file; refuse one that is missing or damaged.

        Args:
            name: Name of the file.
            fix: What to do where it is missing.
        """
        path = self.path / name
        if name not in self.config["files"] or not path.is_file():
            raise FileNotFoundError(checks.message(f"{path}", "no such file", fix))
        if _file_hash(path) not in self.config["files"][name]:
            raise ValueError(checks.message(f"{path} as it was written", "a damaged or foreign file", fix))
        return path


def read_json(path: Path) -> Any:
    """Return the contents of a JSON file; the error for a damaged one names it.

    Args:
        path: The file.
    """
    try:
        return json.loads(path.read_text())
    except (ValueError, RecursionError) as error:
        raise ValueError(checks.message(f"{path} to be JSON", error, "The file is damaged: write it again.")) from error


def _require_version(place: Path) -> None:
    """Refuse the configuration that another version wrote: it may be right, and mean something else."""
    config, ours = read_json(place), versions()["scoremh"]
    try:
        theirs = str(config["versions"]["scoremh"])
    except (KeyError, TypeError):
        theirs = "unknown version"
    if ours != theirs:
        fix = "Fit again, or install the version of scoremh that wrote it."
        raise ValueError(checks.message(f"{place} of scoremh {ours}", f"one of scoremh {theirs[:50]}", fix))


def _file_hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


SCORE, ACCEPTANCE, HELD_OUT = "score.safetensors", "acceptance.safetensors", "held_out.safetensors"


def save_model(model: "ScoreMH", folder: RunFolder) -> None:
    """Write a fitted estimator to the folder of a run.

    Args:
        model: Fitted estimator.
        folder: Folder to write to.
    """
    folder.put(SCORE, model.score_.save)
    if model.acceptance_ is not None:
        folder.put(ACCEPTANCE, model.acceptance_.save)
    rows = torch.from_numpy(np.array(model.held_out_))
    folder.put(HELD_OUT, lambda path: save_tensors(path, {"rows": rows}, {}))
    names, sampler = getattr(model, "feature_names_in_", None), model.sampler_
    folder.update(
        parameters=json_parameters(model),
        sampler={name: getattr(sampler, name) for name in ("noise_level", "proposal", "step_size", "moves")}
        | {"adjust_above": sampler.adjust_above if math.isfinite(sampler.adjust_above) else None},
        acceptance=acceptance_name(sampler.acceptance),
        output=getattr(model, "_sklearn_output_config", None),
        columns=None if names is None else [str(name) for name in names],
        table=model.table_.to_json(),
        layout=layout_to_json(model.layout_),
        event=folder.config.get("event", [model.n_features_in_]),
        diagnosis=asdict(model.diagnosis_),
        finished=True,
    )


def json_parameters(model: "ScoreMH") -> dict[str, Any]:
    """Return the parameters of an estimator as JSON holds them, without the state of a generator or a pool.

    Args:
        model: Estimator, fitted or not.
    """
    seed, given = model.random_state, model.get_params().items()
    plain = {name: value.item() if isinstance(value, np.generic) else value for name, value in given}
    if plain["columns"] is not None:  # keys may be positions, which JSON would make text
        plain["columns"] = [
            [key, list(kind) if isinstance(kind, tuple) else kind] for key, kind in plain["columns"].items()
        ]
    kept_seed = int(seed) if isinstance(seed, int | np.integer) else None
    return plain | {"random_state": kept_seed, "pool": lasting_pool(model.pool)}


def load_model(cls: type["ScoreMH"], folder: RunFolder) -> "ScoreMH":
    """Return the estimator that `save_model` wrote.

    Args:
        cls: Class of the estimator.
        folder: Folder to read from.
    """
    if not folder.config.get("finished"):
        fix = f"Resume it: scoremh fit ... --out {folder.path} --resume."
        raise ValueError(checks.message(f"{folder.path} to hold a finished fit", "an interrupted one", fix))
    with naming(folder.path, f"{folder.path / CONFIG} as `save` writes it", "Fit again."):
        return _loaded_model(cls, folder)


def _loaded_model(cls: type["ScoreMH"], folder: RunFolder) -> "ScoreMH":
    config = folder.config
    parameters = dict(config["parameters"])
    if parameters["columns"] is not None:
        parameters["columns"] = {
            key: tuple(kind) if isinstance(kind, list) else kind for key, kind in parameters["columns"]
        }
    model = cls(**parameters)
    rule = RULES.get(config["acceptance"])
    acceptance = AcceptanceFit.load(folder.get(ACCEPTANCE)) if rule is None else rule
    settings: dict[str, Any] = dict(config["sampler"])
    settings["adjust_above"] = math.inf if settings["adjust_above"] is None else settings["adjust_above"]
    model.sampler_ = Sampler(ScoreFit.load(folder.get(SCORE)), **settings, acceptance=acceptance)
    with reading(folder.get(HELD_OUT), "held-out rows", "Fit again.") as file:
        model.held_out_ = file.tensors["rows"].numpy()
    model.diagnosis_ = Diagnosis.from_dict(config["diagnosis"])
    if config["columns"] is not None:
        model.feature_names_in_ = np.array(config["columns"], dtype=object)
    if config["output"] is not None:
        model.set_output(**config["output"])
    model.n_features_in_ = model.held_out_.shape[1]
    model.table_, model.layout_ = Table.from_json(config["table"]), layout_from_json(config["layout"])
    return model


def lasting_pool(pool: Pool) -> int | None:
    """Return what of a pool outlives this process: a number of processes."""
    return pool if isinstance(pool, int) else None
