"""The pages of studies are those of their kept records. The studies themselves run in `make test-studies`."""

import pytest

from studies.framework import pages
from studies.framework.runner import all_studies
from studies.framework.study import as_json
from tests.studies.cases import DOCS, kept

STUDIES = all_studies()  # which imports them all
UNFINISHED = ("table1",)  # whose kept records are of an earlier grid


@pytest.mark.parametrize("name", STUDIES)
def test_the_page_says_what_the_records_say(name: str) -> None:
    study, records = STUDIES[name], kept(name)
    page, section = (DOCS / study.page).read_text(), pages.render(study, records)
    assert page == (f"{section}\n" if study.page == f"{name}.md" else pages.fill(page, name, section))
    for other, template in study.excerpts.items():
        text = (DOCS / other).read_text()
        assert pages.fill(text, name, pages.render(study, records, template)) == text
        assert f"<!-- {name} -->" in text
    assert study.picture is None or list(DOCS.glob(f"{name}*.png"))


@pytest.mark.parametrize("name", STUDIES)
def test_kept_records_are_those_of_the_declared_grid(name: str) -> None:
    study, records = STUDIES[name], kept(name)
    settings = as_json(study.config)
    assert settings == {key: records.settings[key] for key in settings}
    wanted = {cell for stage in study.stages(study.config) for cell in stage}
    cells = [kind.of(record) for kind in study.kinds for record in records.kinds.get(kind.kind, [])]
    assert len(set(cells)) == len(cells)
    assert set(cells) < wanted if name in UNFINISHED else set(cells) == wanted


@pytest.mark.parametrize("name", STUDIES)
def test_every_claim_is_decided_by_the_records(name: str) -> None:
    for verdict in STUDIES[name].verdicts(kept(name)).values():
        cases = verdict.values() if not isinstance(verdict, bool) else [verdict]
        assert cases
        assert all(isinstance(one, bool) for one in cases)
