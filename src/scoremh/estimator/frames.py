"""Draws as arrays or data frames, by scikit-learn's conventions."""

from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from sklearn import get_config
from torch import Tensor

from scoremh._shared import checks
from scoremh._shared.extras import extra

Estimator = TypeVar("Estimator", bound="FramesMixin")


class FramesMixin:
    """An estimator whose draws have the columns and the dtype of the rows that it was fitted on."""

    n_features_in_: int
    held_out_: NDArray[Any]

    def set_output(self: Estimator, *, transform: Literal["default", "pandas"] | None = None) -> Estimator:
        """Set the output format of `sample`, and return the estimator.

        Args:
            transform: "default" for an array, "pandas" for a data frame; None changes nothing.
        """
        if transform is not None:
            checks.one_of(transform, ("default", "pandas"), "transform")
            self._sklearn_output_config = {"transform": transform}  # scikit-learn's name for it: clones keep it
        return self

    @property
    def _names(self) -> list[str]:
        """The names of the columns; x0, x1, ... where they have none."""
        unnamed = [f"x{i}" for i in range(self.n_features_in_)]
        return [str(name) for name in getattr(self, "feature_names_in_", unnamed)]

    def _framed(self, x: Tensor) -> Any:
        """Return draws as an array or a data frame."""
        rows = x.numpy().astype(self.held_out_.dtype)
        like_rows = "pandas" if hasattr(self, "feature_names_in_") else get_config()["transform_output"]
        if getattr(self, "_sklearn_output_config", {}).get("transform", like_rows) != "pandas":
            return rows
        with extra("cli"):  # the extra with pandas
            import pandas as pd

        return pd.DataFrame(rows, columns=np.array(self._names, dtype=object))
