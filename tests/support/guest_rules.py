"""Rules of a runner's server that let every job in."""

ANY_JOB = '{"repositories":["*"],"forks":[["*",null]],"run":0}'
