"""A learned score: a target, with what is known of its training."""

from dataclasses import dataclass
from pathlib import Path

from jaxtyping import Float
from torch import Tensor, nn

from scoremh._shared import checks
from scoremh._shared.support import Box
from scoremh.networks import AtLevel, HeavyTailed, Standardized
from scoremh.score_matching.losses import implicit
from scoremh.training import Fit, load_fit, save_fit
from scoremh.types import Middle, Target


@dataclass(eq=False, repr=False)
class ScoreFit(Fit):
    """A learned score. It is a target: `metropolis_hastings(fit, MALA(0.1), LineIntegral())`.

    Args:
        net: The network, in the coordinates of the samples: `net(x)`, or `net(x, level)` for a noise-conditional one.
        history: From "step", "loss", "held_out" and "rate" to a number per look.
        recipe: How it was trained.
        seed: Of the training's own generator.
        seconds: Time it took.
        best: Step whose weights these are.
        support: The box of the samples, a tenth of their range wider on either side; in the coordinates of
            `HeavyTailed` where the score was learned in those.
        level: The noise level at which a noise-conditional network is read, in its own coordinates; None for others.
        loss: What was minimised, as text.
    """

    support: Box
    level: float | None
    loss: str

    log_density = None

    def score(self, x: Float[Tensor, "chain *event"]) -> Float[Tensor, "chain *event"]:
        """Return the score at x."""
        score: Tensor = self.net(x) if self.level is None else self.net(x, self.level)
        return score

    def at(self, level: float) -> Target:
        """Return the score of the samples blurred by noise of this level, as a target; for `anneal`.

        Args:
            level: In the coordinates of the network: in units of the samples' spread where it is standardised.
        """
        if self.level is None:
            got = f"one by {type(self._inside()).__name__}"
            fix = "Fit it with MultilevelDenoising(), the default but for heavy tails."
            raise ValueError(checks.message("a score that takes a noise level", got, fix))
        return Target(AtLevel(self.net, level))

    @property
    def covariance(self) -> Tensor | None:
        """Covariance of noise of level 1 in the coordinates of the samples: their own where they are standardised.

        For `annealing.flow`, and for proposals that are to fit the samples. None stands for the identity.
        """
        if isinstance(self.net, HeavyTailed):
            fix = "Fit it without heavy_tails."
            raise ValueError(checks.message("noise with a covariance", "noise in coordinates of heavy tails", fix))
        if not isinstance(self.net, Standardized):
            return None
        root = self.net.root
        return root @ root.mT if root.ndim == 2 else root.square().expand(self.net.mean.numel())

    def __repr__(self) -> str:
        """Say what was learned, how long it took, and how well it went."""
        heavy = ", in coordinates of heavy tails" if isinstance(self.net, HeavyTailed) else ""
        read = "" if self.level is None else f", read at noise level {self.level:.3g} of the samples' spread"
        return f"score by {type(self._inside()).__name__} and {self.loss}{heavy}{read}\n{super().__repr__()}"

    def _inside(self) -> nn.Module:
        """Return the network within its coordinates."""
        inside = self.net
        while isinstance(inside, Standardized | HeavyTailed):
            inside = inside.net
        return inside

    @property
    def middle(self) -> Middle:
        """Where the samples of a score with heavy tails lie and how wide they are, for `LineIntegral(bend=...)`."""
        if not isinstance(self.net, HeavyTailed):
            fix = "Fit it with heavy_tails=True, or write LineIntegral() without a bend."
            raise ValueError(checks.message("a score with heavy tails", "one without", fix))
        centre, width = (tuple(part.flatten().tolist()) for part in (self.net.centre, self.net.width))
        return centre, width

    def save(self, path: str | Path) -> None:
        """Write a safetensors file, whose header says in JSON what was fitted and how."""
        box = {"support.low": self.support.low, "support.high": self.support.high}
        save_fit(self, path, {"level": self.level, "loss": self.loss}, box)

    @classmethod
    def load(cls, path: str | Path, net: nn.Module | None = None) -> "ScoreFit":
        """Read what `save` wrote; no code in the file is run.

        Args:
            path: The file.
            net: A network like the one that was fitted, where that was not one of `scoremh.networks`.
        """
        fields, tensors = load_fit(path, cls.__name__, net)
        return cls(**fields, support=Box(tensors["support.low"], tensors["support.high"]))


def implicit_losses(fit: ScoreFit, x: Float[Tensor, "sample *event"]) -> Float[Tensor, " sample"]:
    """Return the implicit score-matching loss of a learned score at every sample, in the samples' own coordinates.

    Args:
        fit: The score.
        x: Samples that it was not learned from.
    """
    return implicit(fit.net if fit.level is None else AtLevel(fit.net, fit.level), x)
