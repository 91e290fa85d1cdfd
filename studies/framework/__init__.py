"""How a study is declared, computed and written down.

    preset -> stages of cells -> records -> claims -> a section of a page, a picture

A new study is one module and one template, `templates/NAME.md`, which uses the names of the module:

    @dataclass(frozen=True)
    class Config:
        seeds: tuple[int, ...]

    class Chains(Cell, kind="chains"):
        step: float
        seed: int

        def measure(self, config, folder): return {"w1": ...}

    def stages(config): return [grid(Chains, seed=config.seeds, step=(0.1, 0.2))]

    STUDY = Study("name", "what it shows", {"paper": Config((1, 2, 3))}, stages, (Chains,), picture, globals(), claims)

`study` holds the nouns, `runner` computes missing cells, `pages` fills in templates, `tables` turns records into
text. `--redraw` draws pictures and writes pages from the kept records alone; the pictures of a study that
`shows_draws` stay as they are. Every section states the version that its records were computed with.
"""

from studies.framework.study import Cell, Claim, Record, Records, Study, grid

__all__ = ["Cell", "Claim", "Record", "Records", "Study", "grid"]
