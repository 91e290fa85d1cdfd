"""The folder of a run: `config.json`, which describes the run, and its other files.

A fitted estimator consists of `config.json` and of weights and held-out rows as safetensors, without pickle; the
command line adds chains, metrics and a report. Every file that is read again contains its checksum. Files are written
under a temporary name and then renamed, so that an interrupted write leaves either the old file or the new one.
"""

import errno
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


CONFIG, SCORE, ACCEPTANCE, HELD_OUT = (
    "config.json",
    "score.safetensors",
    "acceptance.safetensors",
    "held_out.safetensors",
)
CHAINS, METRICS, REPORT = "chains.nc", "metrics.json", "report.html"  # written by the command line


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
        """Create the folder of a run; raise an error if it contains a run, or files with the names of a run's files."""
        if (path / CONFIG).exists() or (path.exists() and not path.is_dir()):
            got = "one with a run in it" if path.is_dir() else "a file"
            raise FileExistsError(checks.message(f"{path} to be a new folder", got, "Choose another folder."))
        stray = [name for name in (CHAINS, METRICS) if (path / name).exists()]
        if stray:
            fix = "Move it away, or choose another folder."
            raise FileExistsError(checks.message(f"{path} to be a new folder", f"one with {stray[0]} in it", fix))
        folder = cls(path, {"versions": versions(), **config})
        try:
            path.mkdir(parents=True, exist_ok=True)
            require_no_links(path)
            folder.update()
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT):  # the disk is full, the folder is right
                raise
            fix = "Choose a folder with write permission."
            raise PermissionError(checks.message(f"{path} to be writable", error.strerror, fix)) from error
        return folder

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """Open the folder of a run; raise an error if it is damaged or was written by another version."""
        place = path / CONFIG
        if not place.is_file():
            got = f"no {CONFIG} in it" if path.is_dir() else "no such folder"
            fix = "Create one with `scoremh fit data.csv --out FOLDER` or ScoreMH.save."
            raise FileNotFoundError(checks.message(f"{path} to be the folder of a run", got, fix))
        require_no_links(path)
        _require_version(place)
        return cls(path, files.read_json(place, "The file is damaged or was edited: delete the folder, and fit again."))

    def update(self, **entries: Any) -> None:
        """Write entries to `config.json`."""
        self.config.update(entries)
        files.write_json(self.path / CONFIG, self.config)

    def put(self, name: str, write: Callable[[Path], object], *, outdates: Sequence[str] = ()) -> list[str]:
        """Write a file of the run, remove the files that it outdates, and return the names of the removed files."""
        removed = [other for other in outdates if (self.path / other).exists()]
        with replacing(self.path / name) as partial:
            write(partial)
            for other in removed:  # before the new file is in place: they describe the old one
                (self.path / other).unlink()
        return removed

    def get(self, name: str, fix: str = "Fit again.") -> Path:
        """Return the path of a file; raise an error if it is missing. The reader of the file checks its contents."""
        path = self.path / name
        if not path.is_file():
            raise FileNotFoundError(checks.message(f"{path}", "no such file", fix))
        return path


def _require_version(place: Path) -> None:
    """Raise an error for a configuration of another version: the meaning of its entries may have changed."""
    with naming(place, f"{place} to be JSON", "The file is damaged: delete the folder, and fit again."):
        config, ours = json.loads(place.read_text()), versions()["scoremh"]
    try:
        theirs = str(config["versions"]["scoremh"])
    except (KeyError, TypeError):
        theirs = "unknown version"
    if ours != theirs:
        fix = "Fit again, or install the version of scoremh that wrote it."
        raise ValueError(checks.message(f"{place} of scoremh {ours}", f"one of scoremh {theirs[:50]}", fix))


def save_model(model: "ScoreMH", folder: RunFolder) -> None:
    """Write a fitted estimator to the folder of a run."""
    folder.put(SCORE, model.score_.save)
    if model.acceptance_ is not None:
        folder.put(ACCEPTANCE, model.acceptance_.save)
    rows = torch.from_numpy(np.array(model.held_out_))
    folder.put(HELD_OUT, lambda path: save_tensors(path, {"rows": rows}, {}))
    names, sampler = getattr(model, "feature_names_in_", None), model.sampler_
    folder.update(
        parameters=json_parameters(model),
        sampler={
            "noise_level": sampler.noise_level,
            "proposal": sampler.proposal,
            "step_size": sampler.step_size,
            "group_size": sampler.group_size,
            "accept_above": sampler.accept_above if math.isfinite(sampler.accept_above) else None,
        },
        acceptance=acceptance_name(sampler.acceptance),
        output=getattr(model, "_sklearn_output_config", None),
        columns=None if names is None else [str(name) for name in names],
        table=model.table_.to_json(),
        layout=layout_to_json(model.layout_),
        event=folder.config.get("event", [model.n_features_in_]),
        diagnosis=asdict(model.diagnosis_),
        fit_seconds=model.fit_seconds_,
        finished=True,
    )


def json_parameters(model: "ScoreMH") -> dict[str, Any]:
    """Return the parameters of an estimator in a form for JSON, without generators and executors."""
    seed, given = model.random_state, model.get_params().items()
    plain = {name: value.item() if isinstance(value, np.generic) else value for name, value in given}
    if plain["columns"] is not None:  # keys may be positions, which JSON would convert to text
        plain["columns"] = [
            [key, list(kind) if isinstance(kind, tuple) else kind] for key, kind in plain["columns"].items()
        ]
    kept_seed = int(seed) if isinstance(seed, int | np.integer) else None
    return plain | {"random_state": kept_seed, "pool": lasting_pool(model.pool)}


def load_model(cls: type["ScoreMH"], folder: RunFolder) -> "ScoreMH":
    """Return the estimator that `save_model` wrote."""
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
    settings["accept_above"] = math.inf if settings["accept_above"] is None else settings["accept_above"]
    model.sampler_ = Sampler(ScoreFit.load(folder.get(SCORE)), **settings, acceptance=acceptance)
    with reading(folder.get(HELD_OUT), "held-out rows", "Fit again.") as file:
        model.held_out_ = file.tensors["rows"].numpy()
    model.diagnosis_, model.fit_seconds_ = Diagnosis.from_dict(config["diagnosis"]), dict(config["fit_seconds"])
    if config["columns"] is not None:
        model.feature_names_in_ = np.array(config["columns"], dtype=object)
    if config["output"] is not None:
        model.set_output(**config["output"])
    model.n_features_in_ = model.held_out_.shape[1]
    model.table_, model.layout_ = Table.from_json(config["table"]), layout_from_json(config["layout"])
    return model


def lasting_pool(pool: Pool) -> int | None:
    """Return the number of processes of a pool; None for executors and clients, which cannot be saved."""
    return pool if isinstance(pool, int) else None
