"""How ranks combine what they computed."""
