"""Modules as people write them: traced, recognised part by part, cut into sections.

trace.py       torch.export: a module to a graph of operations, with module names and source lines
wires.py       which entry of which stream every entry of a traced tensor is
streams.py     the small graph: streams [samples, positions, channels] and how each is made
recognise.py   from the traced graph to streams; rules/ has a file per kind of operation
cuts.py        where node layers lie
sections.py    from streams between two node layers to a section
prefix.py      what comes before the first node layer
load.py        all of it, and the comparison with the module's own output
"""
