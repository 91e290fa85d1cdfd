"""A fitted estimator as files: settings in JSON, weights and held-out rows in safetensors, no pickle."""

import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors.numpy import load_file

from scoremh._shared import checks
from scoremh._shared.files import save_tensors
from scoremh.balance_matching import AcceptanceFit
from scoremh.diagnostics import Caution
from scoremh.estimator.acceptance_names import RULES, acceptance_name
from scoremh.estimator.diagnosis import Diagnosis
from scoremh.estimator.run_folder import RunFolder
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
        event=folder.config.get("event", [model.n_features_in_]),
        diagnosis=asdict(model.diagnosis_),
        finished=True,
    )


def json_parameters(model: "ScoreMH") -> dict[str, Any]:
    """Return the parameters of an estimator as JSON holds them; the state of a generator is not kept.

    Args:
        model: Estimator, fitted or not.
    """
    seed, given = model.random_state, model.get_params().items()
    plain = {name: value.item() if isinstance(value, np.generic) else value for name, value in given}
    return plain | {"random_state": int(seed) if isinstance(seed, int | np.integer) else None}


def load_model(cls: type["ScoreMH"], folder: RunFolder) -> "ScoreMH":
    """Return the estimator that `save_model` wrote.

    Args:
        cls: Class of the estimator.
        folder: Folder to read from.
    """
    if not folder.config.get("finished"):
        fix = f"Resume it: scoremh fit ... --out {folder.path} --resume."
        raise ValueError(checks.message(f"{folder.path} to hold a finished fit", "an interrupted one", fix))
    config = folder.config
    model = cls(**config["parameters"])
    rule = RULES.get(config["acceptance"])
    acceptance = AcceptanceFit.load(folder.get(ACCEPTANCE)) if rule is None else rule
    settings: dict[str, Any] = dict(config["sampler"])
    settings["adjust_above"] = math.inf if settings["adjust_above"] is None else settings["adjust_above"]
    model.sampler_ = Sampler(ScoreFit.load(folder.get(SCORE)), **settings, acceptance=acceptance)
    model.held_out_ = load_file(folder.get(HELD_OUT))["rows"]
    diagnosis = config["diagnosis"]
    model.diagnosis_ = Diagnosis(**diagnosis | {"warnings": tuple(Caution(**one) for one in diagnosis["warnings"])})
    if config["columns"] is not None:
        model.feature_names_in_ = np.array(config["columns"], dtype=object)
    if config["output"] is not None:
        model.set_output(**config["output"])
    model.n_features_in_ = model.held_out_.shape[1]
    return model
