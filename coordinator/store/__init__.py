"""Where runs are kept, and who drives one."""
