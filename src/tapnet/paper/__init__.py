"""The figures, tables and ablations of the paper, one file each."""
