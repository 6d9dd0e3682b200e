"""A step's work, assigned to ranks by the speed that their steps show."""
