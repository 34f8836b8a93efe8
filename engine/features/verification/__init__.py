"""`engine verify`: the checksums of everything that is stored."""
