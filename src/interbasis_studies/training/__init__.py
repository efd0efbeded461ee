"""Training the small models that interbasis is tried on."""
