"""One noisy vector a text: the public projection that parties clip in, and training on what they release."""
