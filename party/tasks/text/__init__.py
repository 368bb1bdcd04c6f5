"""What tasks that train a text model share."""
