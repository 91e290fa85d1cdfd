"""One page to look at: samples beside data, the chains, the training and the numbers, in a file that opens offline."""

from scoremh.report.contents import Contents, ratio
from scoremh.report.page import html, write

__all__ = ["Contents", "html", "ratio", "write"]
