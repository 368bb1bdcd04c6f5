"""The seconds and bytes that every run costs besides privacy, measured once on one machine for all systems."""

VALUE_BYTES = 4
"""A number of a release travels as an int32."""
START_SECONDS = 3.1
"""Seconds until a training process has imported torch and all that a first fit needs, on the machine of these
constants.
"""
COMMAND_SECONDS, RAY_SECONDS, NODE_SECONDS = 2.3, 2.8, 2.5
"""Seconds for the command's own imports; for a private Ray until it takes parties; and of the processor for one party's
node until it is ready.
"""
FINISHING_SECONDS = 4.5
"""Seconds for joining, measuring, publishing and ending, for vocabularies of some thousand words."""

NODE_MEMORY = 180 * 2**20
COORDINATOR_MEMORY = 500 * 2**20
