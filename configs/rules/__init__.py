"""Rules over several fields, a file for each group, and how unset fields of it resolve."""
