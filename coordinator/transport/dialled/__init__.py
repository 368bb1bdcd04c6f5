"""The coordinator's gate, where parties that only dial out come in, and the way from a link to one of them."""
