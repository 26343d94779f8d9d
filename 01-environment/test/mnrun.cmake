# The tests of mnrun.
