"""Modules as people write them: traced, recognised part by part, cut into sections.

trace.py        torch.export: a module to a graph of operations, with module names and source lines
streams.py      the small graph: streams [samples, positions, channels] and the operation that makes each
values.py       what is known of every traced value: which entry of which stream each of its entries is
recognise.py    from the traced graph to streams; rules/ has a file per kind of operation
cuts.py         the streams of every node layer, and streams as linear maps of these
sections.py     from streams between two node layers to a section; the prefix and the tail
load.py         all of it, names of node layers, and the comparison with the module's own output
"""
