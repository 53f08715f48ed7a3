"""What `doctor` makes of a machine: facts in, findings out. `table.CHECKS` lists every question there is."""
