"""How a study is declared, computed and written down.

    config -> stages of cells -> records -> claims -> a section of a page, a picture

A new study is one module and one template, `templates/NAME.md`, which uses the names of the module:

    @dataclass(frozen=True)
    class Config:
        seeds: tuple[int, ...] = (1, 2, 3)

    class Chains(Cell, kind="chains"):
        step: float
        seed: int

        def measure(self, config, folder): return {"w1": ...}

    def stages(config): return [grid(Chains, seed=config.seeds, step=(0.1, 0.2))]

    STUDY = Study("name", "what it shows", Config(), stages, picture, globals(), claims)

`study` holds the nouns, `runner` computes missing cells, `pages` fills in templates, `tables` turns records into
text. Every section states the version that its records were computed with.
"""

from studies.framework.study import Cell, Claim, Record, Records, Study, grid

__all__ = ["Cell", "Claim", "Record", "Records", "Study", "grid"]
