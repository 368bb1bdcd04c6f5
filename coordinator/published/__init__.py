"""What a published folder holds, for whoever writes, reads, checks or removes one."""
