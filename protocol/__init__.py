"""What Shoal's processes say to one another: messages, codec, sockets, life cycle.

The only package that every process imports; it imports none of the others.
"""
