"""How parties are put on machines. The only room that may import all others."""
