"""Data sets and DataLoaders of others: who makes their batches, and how those are handed over.

dataset_feed.py  the feed of a map-style data set      loader_feed.py  the feed of a DataLoader
prepare.py       a look at it and the machine, then …  hosting.py      … who makes batches, how many, how far ahead
probing.py       … what a sample costs, fit for threads?
crew.py          the workers, and who steers their number
legs.py          numbers that change on one stream     leg.py          one number of processes or threads
shelf.py         the data set as a worker sees it      parcel.py       batches handed over without /dev/shm
"""
