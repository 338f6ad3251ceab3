"""`dyno tune`: which settings of each engine are fastest for one workload and load, with the same effort for each."""
