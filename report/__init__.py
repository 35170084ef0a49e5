"""The report: reads the saved files of a sweep or a run; writes tables, plots and one offline page. Imports no JAX."""
