"""How a study is declared, computed and written down.

    config -> cells -> records -> claims and numbers -> a section of a page, a picture

`study` holds the nouns, `runner` computes what is missing, `pages` fills in templates, `tables` turns records into
text.
"""

from studies.framework.study import Cell, Claim, Record, Records, Study, grid

__all__ = ["Cell", "Claim", "Record", "Records", "Study", "grid"]
