"""The content of a published folder, for the code that writes, reads, checks or removes one."""
