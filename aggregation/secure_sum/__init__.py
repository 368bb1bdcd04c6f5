"""The secure sum: parties' integer vectors added so that the coordinator learns the sum and nothing else.

Double masking after Bonawitz et al. 2017, "Practical Secure Aggregation for Privacy-Preserving Machine Learning", on
a sparse graph above 16 parties (Bell et al. 2020). One module a round, each with its party's side and its
coordinator's side: `advertise`, `opening`, `share`, `mask`, `consistency`, `unmask`. `participant` and `summation`
string the rounds together for the two ends; `disclaim` settles what a lost attempt costs.
"""
