"""What the person who looks after a coordinator sees of it: the status page, its health, its metrics."""
