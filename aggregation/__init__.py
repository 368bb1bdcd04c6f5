"""Everything that may leave a party, and how it is combined: mechanisms, noise, clipping, accounting, the secure
sum.
"""
