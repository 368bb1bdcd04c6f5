"""What plans of each recipe may ask of a party, one module per recipe. The administrator installs them."""
