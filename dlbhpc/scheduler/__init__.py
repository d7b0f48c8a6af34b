"""Where jobs run: cluster profiles, the batch script, and the executors that submit it."""
