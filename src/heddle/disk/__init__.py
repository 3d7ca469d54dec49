"""The disk tier of the prefix cache: KV pages in files, which outlive memory and the process.

The disk tier does not interpret the bytes of a page. The prefix cache knows which pages belong
together.
"""
