"""The disk tier of the prefix cache: KV pages in files, which outlive the process.

The disk tier does not interpret the bytes of a page. The prefix cache knows which pages belong to a
prefix.
"""
