"""What runs on every host, by any Python from 3.9 on: the standard library alone."""
