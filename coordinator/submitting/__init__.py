"""The end of those who submit runs to a coordinator that stays up: who they are, and what they ask."""
