"""Studies made with interbasis: the paper reproduced, networks with known answers, speed, training.

The library never imports this package; the entry point ``interbasis.commands`` plugs its commands in.
"""
