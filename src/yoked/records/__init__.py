"""What the parts exchange: frozen dataclasses without behaviour."""
