"""Rows and the lm_head's parts, assigned to ranks by the speed that their steps show."""
