"""A coordinator that stays up: it takes runs from those who may submit them, each in a process of its own."""
