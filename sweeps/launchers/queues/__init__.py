"""What is asked of Slurm and Kubernetes, and what they answer: options, manifests, states of jobs."""
