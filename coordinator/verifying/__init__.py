"""`coordinator verify`: what a published folder proves."""
