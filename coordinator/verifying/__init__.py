"""`coordinator verify`: checks what a published folder proves."""
