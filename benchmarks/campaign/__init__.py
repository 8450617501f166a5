"""A campaign of faults: schedules as data, worlds that they happen in, a history of each run, and what must hold of it.

schedule    faults as data, drawn from a seed; a failing one is made shorter
history     what happened, as invoke / ok / fail / unknown, and the invariants that a checker looks for in it
disk        the seam through which files are written: full disks, torn writes, crashes between two writes
paper       an engine and machines of arithmetic, behind the interfaces that the real ones have
world       processes that live, are killed and start again on them, under one simulated clock
mutants     mends undone, one at a time: the checkers must notice each
"""
