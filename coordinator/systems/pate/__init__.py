"""PATE (Papernot et al. 2017, 2018): votes of ensembles at the parties."""
