"""A fitted estimator as files: settings in JSON, weights and rows in safetensors, no pickle."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors.numpy import load_file

from scoremh._shared import checks
from scoremh._shared.files import save_tensors
from scoremh.balance_matching import AcceptanceFit
from scoremh.estimator.diagnosis import Diagnosis
from scoremh.estimator.folder import Folder
from scoremh.estimator.sampler import Sampler
from scoremh.score_matching import ScoreFit

if TYPE_CHECKING:
    from scoremh.estimator.model import ScoreMH

SCORE, ACCEPTANCE, HELD_OUT = "score.safetensors", "acceptance.safetensors", "held_out.safetensors"


def write(model: "ScoreMH", folder: Folder) -> None:
    """Write all that a fitted estimator is into the folder of a run."""
    folder.put(SCORE, model.score_.save)
    if model.acceptance_ is not None:
        folder.put(ACCEPTANCE, model.acceptance_.save)
    rows = torch.from_numpy(np.array(model.held_out_))
    folder.put(HELD_OUT, lambda path: save_tensors(path, {"rows": rows}, {}))
    names, sampler = getattr(model, "feature_names_in_", None), model.sampler_
    folder.note(
        parameters=parameters(model),
        sampler={name: getattr(sampler, name) for name in ("noise", "proposal", "acceptance", "step")},
        output=getattr(model, "_sklearn_output_config", None),
        columns=None if names is None else [str(name) for name in names],
        event=folder.config.get("event", [model.n_features_in_]),
        diagnosis=asdict(model.diagnosis_),
        finished=True,
    )


def parameters(model: "ScoreMH") -> dict[str, Any]:
    """Return the parameters of an estimator as JSON holds them; a generator's state is not kept."""
    seed = model.random_state
    return {**model.get_params(), "random_state": int(seed) if isinstance(seed, int | np.integer) else None}


def read(cls: type["ScoreMH"], folder: Folder) -> "ScoreMH":
    """Make an estimator of what `write` wrote."""
    if not folder.config.get("finished"):
        fix = f"Finish it: scoremh fit ... --out {folder.path} --resume."
        raise ValueError(checks.message(f"{folder.path} to hold a finished fit", "an interrupted one", fix))
    config = folder.config
    model = cls(**config["parameters"])
    learned = AcceptanceFit.load(folder.get(ACCEPTANCE)) if ACCEPTANCE in config["files"] else None
    model.sampler_ = Sampler(ScoreFit.load(folder.get(SCORE)), **config["sampler"], learned=learned)
    model.held_out_ = load_file(folder.get(HELD_OUT))["rows"]
    told = config["diagnosis"]
    model.diagnosis_ = Diagnosis(**told | {"warnings": tuple(told["warnings"])})
    if config["columns"] is not None:
        model.feature_names_in_ = np.array(config["columns"], dtype=object)
    if config["output"] is not None:
        model.set_output(**config["output"])
    model.n_features_in_ = model.held_out_.shape[1]
    return model
