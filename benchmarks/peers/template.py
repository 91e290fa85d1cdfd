"""The words of the page of the comparison."""

PAGE = """# Beside other samplers

`make peers` writes this page from `docs/results/peers.json`. {about}
CPU seconds are those of one thread; all samplers take turns in {rounds} rounds of one process. Random seeds {seeds}.{missing}

**The distribution and its networks.** Two normal distributions, 3 standard deviations apart along one axis, standard
deviations between 0.5 and 1 along the others. A score network d -> h -> h -> d and a density network d -> h -> h -> 1 know
it exactly: their weights are set and not learned, none is 0, and the gradient of the second is the first. So no sampler is
judged by how well its network was fitted, and all may reach the truth. Hidden units: {networks}. Samplers that take scores (ours,
ZigZag, annealed Langevin) have the score network, those that take a density and its gradient the density network.

**Effective draws.** {mixing_chains} chains from exact draws; one over the integrated autocorrelation time (Geyer's monotone
sequence) of the worst of six functionals: the place along the modes, its sign, two other coordinates, |x|^2 and log p. Times
{chains:,} chains over the time that a transition of {chains:,} chains takes. Tuning and compilation are not counted, for nobody. "≤":
some run was shorter than ten of its autocorrelation times, which flatters the sampler. Unadjusted samplers have another
distribution than the one wanted; their effective draws are of that one, and W1 below tells how far off it is.

## Effective draws per second

Medians of three seeds with their range.

{rates}

Our effective draws per second over a peer's: median over rounds and seeds, with quartiles. Bold is below the two that were to be reached.

{ratios}

- At least twice every peer, by the best of these among those whose bias (next section) is at most {max_bias} standard deviations: {verdict}.
- Why the ratio is what it is: without a density, Simpson's rule asks for two scores a transition where MALA with a
  density asks for one gradient. Time of a peer's gradient, in score calls of ours: {costs}. What is left comes from the moves: `warmup`
  learns a variance for every coordinate. MALA of blackjax and torchebm's Langevin have no such variances, ebmkit's MALA has them on request;
  NUTS of blackjax learns them too. Like for like, with one step size for all coordinates on both sides, is the last of these tables.
- Our settings were chosen after trials on this distribution: `warmup` in the place of `tune`, and Gauss's rule beside Simpson's once its bias was
  seen, from which the limit of {max_bias} comes as well. The peers' were not changed.
- The exact rule pays for its exactness with more scores, and with decisions that only some of the chains need.
- Through noise is made for modes that no chain crosses, which these are not. A log density takes 8 (1 + d) calls, so it was
  measured in 2 dimensions only.
- Left out in more than {max_slow} dimensions, to keep the run short: {slow}.
- ZigZag (which asks for gradients alone, as we do) was measured in 2 dimensions only, to keep the run short: vectorised over chains, every event
  waits for the slowest chain. Its bias below is that of our use of it: stretches of so many events end at an event, where a path is not a draw.

## Bias

Effective draws are worth something only where the distribution is the right one. Mean of the worst functional over the same runs, minus the truth,
in standard deviations; median of three seeds. It holds the runs' own noise too, one over the square root of their effective draws; bold is above {max_bias}.

{biases}

Where MALA with Simpson's rule is off, its moves are too long for one midpoint: the variance that `warmup` learns along the modes is that of both together,
and a step may lead from one to the other. `LineIntegral("gauss")` has three nodes, and the exact rule no error at all. The row with one step size
for all coordinates makes shorter moves by the same rule.

## Effective draws per score call

A gradient of the density network counts as one call.

{calls}

NUTS counts the leapfrog steps of each chain. Vectorised chains wait for the longest tree, which costs time and no calls here
(blackjax), or counts (ebmkit, whose calls include those of chains that wait).

## Distance to the truth after equal time

All chains start at one mode and get the CPU time of {equal_time} transitions of our MALA with Simpson's rule. W1 of the places of {chains:,}
chains along the modes, and its mean over the other coordinates; medians of three seeds, and how many transitions there was time for. The last row is what
as many exact draws have.

{distances}

Annealed Langevin starts from noise and passes as many levels as there is time for.

## More chains, and two threads

{many_chains:,} chains in {many}. With two threads, ours run blocks of chains in a pool of two threads, torch and XLA have two threads
of their own; {many_rounds} rounds; time is that of the clock, on a machine with other work, so only ratios within rounds mean much.

{many_table}

## How our cost grows

CPU time of a step of MALA, one thread, and the exponent b of cost = a size^b by least squares in logarithms, with Student's 95% interval.
Unless varied: 10 dimensions, two hidden layers of 128, 500 chains, Simpson's rule; Gauss's rule where nodes vary; 128 hidden units where the dimension varies.

{growth}

Linear is expected in chains, in the dimension once it is larger than the hidden layers, and in nodes once they are many; hidden layers cost the
square of their width once they are wider than the event.

## Settings

Warm-ups ran on 128 chains from exact draws and on a seed of their own.

{settings}

"Of its documentation" is the step size of the example in the sampler's documentation, "that of our MALA" the one of our row with one step size for all
coordinates: neither blackjax nor torchebm tunes these samplers. ebmkit's warm-ups are a fifth of its default length. pdmp_jax was installed without its requirements, which ask for versions of JAX that blackjax no longer takes.
"""  # noqa: E501
