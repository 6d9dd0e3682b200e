"""Virtual hosts, links and faults on one Linux machine: `yoked lab`."""
