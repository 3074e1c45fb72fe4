"""Reports of sweeps: one page that needs nothing else, and figures for papers.

:mod:`~mpicoll.report.content` says what is shown, :mod:`~mpicoll.report.figures` and
:mod:`~mpicoll.report.page` draw and write the page, :mod:`~mpicoll.report.papers` the figures.
"""
