"""The pages of studies are those of their kept records. The studies themselves run in `make test-studies`."""

from itertools import chain

import pytest

from studies.framework import catalog, pages
from studies.framework.study import as_json
from tests.studies.cases import DOCS, kept

STUDIES = catalog.all_studies()  # which imports them all


@pytest.mark.parametrize("name", STUDIES)
def test_the_page_says_what_the_records_say(name: str) -> None:
    study, records = STUDIES[name], kept(name)
    page, section = (DOCS / study.page).read_text(), pages.render(study, records)
    assert page == (f"{section}\n" if study.page == f"{name}.md" else pages.fill(page, name, section))
    assert records.settings["preset"] == "paper"
    for other, template in study.excerpts.items():
        text = (DOCS / other).read_text()
        assert pages.fill(text, name, pages.render(study, records, template)) == text
        assert f"<!-- {name} -->" in text
    assert study.picture is None or list(DOCS.glob(f"{name}*.png"))


@pytest.mark.parametrize("name", STUDIES)
def test_kept_records_match_those_of_the_paper_preset(name: str) -> None:
    study, records = STUDIES[name], kept(name)
    config = study.presets["paper"]
    settings = {k: v for k, v in as_json(config).items() if k in records.settings}
    assert settings == {key: records.settings[key] for key in settings}
    wanted = set(chain.from_iterable(study.stages(config)))
    for kind in study.kinds:
        cells = [kind.of(record) for record in records.kinds.get(kind.kind, [])]
        assert set(cells) <= wanted
        assert len(set(cells)) == len(cells)
        if not study.partial:
            assert set(cells) == {cell for cell in wanted if isinstance(cell, kind)}


@pytest.mark.parametrize("name", STUDIES)
def test_every_claim_is_decided_by_the_records(name: str) -> None:
    for verdict in STUDIES[name].verdicts(kept(name)).values():
        cases = verdict.values() if not isinstance(verdict, bool) else [verdict]
        assert cases
        assert all(isinstance(one, bool) for one in cases)


@pytest.mark.parametrize("name", [name for name, study in STUDIES.items() if "quick" in study.presets])
def test_quick_presets_use_other_seeds(name: str) -> None:
    presets = STUDIES[name].presets
    assert list(presets)[:2] == ["quick", "paper"]  # a third one takes hours
    assert not set(presets["quick"].seeds) & set(presets["paper"].seeds)
