"""The one connection between hosts: mutual TLS, and behind it words and the bytes of the store.

Standard library alone. `tls` says whom to trust, `frames` what travels, `peer` is one connection,
`hub` node 0's end of all of them, `dial` the other end, `carry` carries the store's connections;
`names` are known to ranks too.
"""
