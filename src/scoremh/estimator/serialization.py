"""A fitted estimator as files: settings in JSON, weights and held-out rows in safetensors, no pickle."""

import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from scoremh._shared import checks
from scoremh._shared.files import naming, reading, save_tensors
from scoremh.balance_matching import AcceptanceFit
from scoremh.estimator.acceptance_names import RULES, acceptance_name
from scoremh.estimator.chain_runs import lasting_pool
from scoremh.estimator.diagnosis import Diagnosis
from scoremh.estimator.frames import layout_from_json, layout_to_json
from scoremh.estimator.run_folder import CONFIG, RunFolder
from scoremh.estimator.table import Table
from scoremh.sampler import Sampler
from scoremh.score_matching import ScoreFit

if TYPE_CHECKING:
    from scoremh.estimator.model import ScoreMH

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
