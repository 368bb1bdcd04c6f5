"""What every plan says, whatever its system."""
