"""Reaching hosts: a transport starts an agent there and gives a client to call it."""
