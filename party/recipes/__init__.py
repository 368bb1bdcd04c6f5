"""What a plan of each recipe may ask of a party, a module each. The administrator installs them."""
