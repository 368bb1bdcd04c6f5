"""The seconds and bytes that every run costs besides privacy, measured once on one machine for all systems."""

VALUE_BYTES = 4
"""A number of a release travels as an int32."""
START_SECONDS = 3.1
"""Until a training process has imported torch and what a first fit needs, where the constants here were taken."""
COMMAND_SECONDS, RAY_SECONDS, NODE_SECONDS = 2.3, 2.8, 2.5
"""The command's own imports; an embedded Ray until it takes parties; processor time of one party's node until ready."""
FINISHING_SECONDS = 4.5
"""Joining, measuring, publishing and taking down, for vocabularies of some thousand words."""

NODE_MEMORY = 180 * 2**20
COORDINATOR_MEMORY = 500 * 2**20
