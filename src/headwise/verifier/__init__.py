"""Is this attention right? If not: what is wrong, on which line, how is it fixed?"""
