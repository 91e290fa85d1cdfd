"""Reports: samples beside data, the chains, the training and the metrics on one page, in a file that opens offline.

`ScoreMH.report` and `Chains.report` write a report; `write` takes any contents. The extra `report` is needed for that,
and not for importing this package.
"""

from scoremh.report.chain_report import chain_contents
from scoremh.report.contents import Contents
from scoremh.report.looks import look
from scoremh.report.page import html, write

__all__ = ["Contents", "chain_contents", "html", "look", "write"]
