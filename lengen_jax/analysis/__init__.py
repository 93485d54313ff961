"""Analysis: tables, plots and pages from results."""
