"""The queues of the race, a file for each. It is imported without the queue, and run in an environment that has nothing else."""
