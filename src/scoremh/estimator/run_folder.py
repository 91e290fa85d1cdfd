"""A run's folder: what `config.json` says of it, and files whose contents it vouches for.

`config.json` holds a hash of every file, and of itself. A file is written beside its place, its hash is noted, and only
then it takes its place: a write that is killed leaves the old file or the new one, and either is known.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scoremh._shared import checks
from scoremh._shared.files import replacing
from scoremh.training import versions

CONFIG = "config.json"


@dataclass(frozen=True)
class Folder:
    """A folder and its configuration.

    Args:
        path: Where it is.
        config: What `config.json` holds.
    """

    path: Path
    config: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def create(cls, path: Path, config: Mapping[str, Any]) -> "Folder":
        """Make the folder of a run; one that holds a run already is left alone."""
        if (path / CONFIG).exists() or (path.exists() and not path.is_dir()):
            got = "one with a run in it" if path.is_dir() else "a file"
            raise FileExistsError(checks.message(f"{path} to be a new folder", got, "Name another one."))
        folder = cls(path, {"versions": versions(), **config, "files": {}})
        try:
            path.mkdir(parents=True, exist_ok=True)
            folder.note()
        except OSError as error:
            fix = "Name one that may be written to."
            raise PermissionError(checks.message(f"{path} to take files", error.strerror, fix)) from error
        return folder

    @classmethod
    def open(cls, path: Path) -> "Folder":
        """Read a folder's configuration; one of another version is refused, and so is one that is damaged."""
        place = path / CONFIG
        if not place.is_file():
            got = f"no {CONFIG} there" if path.is_dir() else "no such folder"
            fix = "Make one: scoremh fit data.csv --out FOLDER, or ScoreMH.save."
            raise FileNotFoundError(checks.message(f"{path} to be the folder of a run", got, fix))
        config, ours = read_json(place), versions()["scoremh"]
        try:
            theirs = config["versions"]["scoremh"]
        except (KeyError, TypeError):
            theirs = "no known version"
        if ours != theirs:
            fix = "Run the fit again, or install the scoremh it was made with."
            raise ValueError(checks.message(f"{place} of scoremh {ours}", f"one of scoremh {theirs}", fix))
        if config.pop("hash", None) != _hash_of(config):
            fix = "It is damaged, or was edited: remove the folder, and begin again."
            raise ValueError(checks.message(f"{place} as it was written", "something else", fix))
        return cls(path, config)

    def note(self, **more: Any) -> None:
        """Write `config.json`, with more in it; what another command noted since is kept."""
        self._write(self._now() | more)

    def _now(self) -> dict[str, Any]:
        """Return what `config.json` holds by now."""
        return Folder.open(self.path).config if (self.path / CONFIG).exists() else self.config

    def _write(self, config: dict[str, Any]) -> None:
        self.config.update(config)
        with replacing(self.path / CONFIG) as partial:
            text = json.dumps(config | {"hash": _hash_of(config)}, indent=1, allow_nan=False)
            partial.write_text(text + "\n")

    def put(self, name: str, write: Callable[[Path], object]) -> None:
        """Write a file of the run.

        Args:
            name: Of the file.
            write: Is called with the place to write to.
        """
        with replacing(self.path / name) as partial:
            write(partial)
            new = _hash(partial)
            self._vouch(name, lambda old: [*old, new])
        self._vouch(name, lambda _: [new])

    def _vouch(self, name: str, change: Callable[[list[str]], list[str]]) -> None:
        now = self._now()
        self._write(now | {"files": now["files"] | {name: change(now["files"].get(name, []))}})

    def drop(self, *names: str) -> None:
        """Remove files of the run."""
        now = self._now()
        self._write(now | {"files": {name: hashes for name, hashes in now["files"].items() if name not in names}})
        for name in names:
            (self.path / name).unlink(missing_ok=True)

    def get(self, name: str, fix: str = "Run the fit again.") -> Path:
        """Return the path of a file, if it is whole.

        Args:
            name: Of the file.
            fix: What to do where there is none.
        """
        path = self.path / name
        if name not in self.config["files"] or not path.is_file():
            raise FileNotFoundError(checks.message(f"{path}", "no such file", fix))
        if _hash(path) not in self.config["files"][name]:
            raise ValueError(checks.message(f"{path} as it was written", "a damaged or foreign file", fix))
        return path


def read_json(path: Path) -> Any:
    """Read a JSON file; a broken one is an error that names it."""
    try:
        return json.loads(path.read_text())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(checks.message(f"{path} to be JSON", error, "It is damaged: make it again.")) from error


def _hash_of(config: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
