"""Bridges to other libraries, one file each; the library is imported when the bridge is used."""
