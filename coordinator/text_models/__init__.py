"""What systems that train a text model share."""
