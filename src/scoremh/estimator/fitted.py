"""What a fitted estimator says of itself."""

from scoremh.balance_matching import AcceptanceFit
from scoremh.estimator.table import Table
from scoremh.sampler import Sampler
from scoremh.score_matching import ScoreFit


class FittedMixin:
    """An estimator with a sampler and a table: their parts by the names of scikit-learn."""

    sampler_: Sampler
    table_: Table

    def __str__(self) -> str:
        """Return the parameters, and the kinds of columns and the noise level of a fitted estimator."""
        if not hasattr(self, "sampler_"):
            return repr(self)
        kinds = "\n".join(f"  {line}" for line in str(self.table_).splitlines())
        return f"{self!r}\ncolumns:\n{kinds}\nnoise level {self.noise_level_:g}, step size {self.step_size_:.3g}"

    @property
    def columns_(self) -> dict[str, str]:
        """The kind of every column, by name."""
        return dict(zip(self.table_.names, map(str, self.table_.columns), strict=True))

    @property
    def noise_level_(self) -> float:
        """The noise level of the kernel."""
        return self.sampler_.noise_level

    @property
    def score_(self) -> ScoreFit:
        """The learned score."""
        assert isinstance(self.sampler_.score, ScoreFit)  # `fit` has learned it
        return self.sampler_.score

    @property
    def acceptance_(self) -> AcceptanceFit | None:
        """The learned acceptance."""
        acceptance = self.sampler_.acceptance
        return acceptance if isinstance(acceptance, AcceptanceFit) else None

    @property
    def step_size_(self) -> float:
        """The step size of the proposal."""
        assert self.sampler_.step_size is not None  # `fit` has tuned it
        return self.sampler_.step_size
