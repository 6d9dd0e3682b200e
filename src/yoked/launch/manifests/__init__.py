"""The same run for a cluster's scheduler: a script for Slurm, manifests for Kubernetes."""
