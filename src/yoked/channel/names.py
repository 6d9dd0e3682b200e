"""Names that both ends know. Ranks import this module, and would wait for more than it."""

LOOPBACK = "127.0.0.1"
# In the job's folder, mode 0600: whom a host trusts, and who it is.
AUTHORITY, CERTIFICATE, KEY = "authority.pem", "certificate.pem", "key.pem"
# What the ranks of the launch prove to each other; beside them.
SECRET = "secret"  # noqa: S105 - a file name
