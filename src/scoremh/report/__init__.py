"""Reports: samples beside data, the chains, the training and the metrics on one page, in a file that opens offline.

`ScoreMH.report` and `Chains.report` write a report; `write` takes any contents. Writing one needs the extra `report`;
importing this package does not.
"""

from scoremh.report.charts import look
from scoremh.report.page import chain_contents, html, write
from scoremh.report.sections import Contents

__all__ = ["Contents", "chain_contents", "html", "look", "write"]
