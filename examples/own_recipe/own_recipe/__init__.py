"""A recipe of one's own: in how many documents two words stand near each other, under noise.

`system.py` is what the coordinator runs, `mechanism.py` how units are bounded and noised, `at_party.py` what a party
lets such a plan ask, and `launcher.py` starts parties as processes, without Ray.
"""
