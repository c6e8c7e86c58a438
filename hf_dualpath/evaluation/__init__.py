"""Is it good, and is it early: the table of metrics, reports, comparisons and pictures."""
