"""A transformer student of fewer layers, distilled from its teacher on public text."""
